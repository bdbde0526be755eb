"""SPEC 7: the function one document sets as its problem."""

from __future__ import annotations

import math
import random

import numpy as np
import pytest
import torch

from vitrail.errors import VitrailError
from vitrail.model.block import Block
from vitrail.model.config import ViTConfig
from vitrail.model.heads.linear_head import LinearHead
from vitrail.model.lecture import vit_cls_forward, vit_mean_forward
from vitrail.model.patches import LinearStem
from vitrail.model.pooling import Pool
from vitrail.model.vit import ViT

FORWARDS = [vit_cls_forward, vit_mean_forward]
EXAMPLE = {"patch_size": 2, "d_model": 8, "num_heads": 2, "d_ff": 16, "num_layers": 2, "num_classes": 3}


def image(height=4, width=4, channels=3):
    return torch.randn(height, width, channels, generator=torch.Generator().manual_seed(7))


def test_the_worked_example_has_its_shape_at_every_step():
    shapes = {LinearStem: [], Block: [], Pool: [], LinearHead: []}

    def record(module, inputs, output):
        if type(module) in shapes:
            shapes[type(module)].append((tuple(inputs[0].shape), tuple(output.shape)))

    handle = torch.nn.modules.module.register_module_forward_hook(record)
    try:
        logits = vit_cls_forward(0, image(), **EXAMPLE)
    finally:
        handle.remove()
    assert shapes[LinearStem] == [((1, 3, 4, 4), (1, 4, 8))]  # (4, 4, 3) -> (2, 2, 8) -> (4, 8)
    assert shapes[Block][0] == ((1, 5, 8), (1, 5, 8))  # (5, 8) -> (5, 8)
    assert len(shapes[Block]) == 2
    assert shapes[Pool][0][1] == (1, 8)  # (8,)
    assert shapes[LinearHead] == [((1, 8), (1, 3))]
    assert logits.shape == (3,)


def norm(x, weights, name):
    centred = x - x.mean(-1, keepdims=True)
    scaled = centred / np.sqrt((centred**2).mean(-1, keepdims=True) + 1e-6)
    return scaled * weights[f"{name}.weight"] + weights[f"{name}.bias"]


def dense(x, weights, name):
    return x @ weights[f"{name}.weight"].T + weights[f"{name}.bias"]


def solve_in_numpy(picture, weights, patch, heads, depth):
    """The document's steps, written out: strided convolution, [CLS], positions, pre-norm blocks, final norm, slot 0."""
    rows, columns = picture.shape[0] // patch, picture.shape[1] // patch
    kernel = weights["stem.projection.weight"].reshape(-1, patch, patch, picture.shape[2])  # (D, P, P, C)
    grid = np.zeros((rows, columns, kernel.shape[0]))
    for row in range(rows):
        for column in range(columns):
            tile = picture[row * patch : (row + 1) * patch, column * patch : (column + 1) * patch]
            grid[row, column] = (kernel * tile).sum(axis=(1, 2, 3)) + weights["stem.projection.bias"]
    x = grid.reshape(rows * columns, -1)
    if "cls_token" in weights:
        x = np.concatenate([weights["cls_token"], x])
    x = x + weights["positions.table"]
    d = x.shape[1] // heads
    for block in (f"blocks.{i}." for i in range(depth)):
        q, k, v = np.split(dense(norm(x, weights, block + "norm1"), weights, block + "attention.qkv"), 3, axis=1)
        mixed = []
        for dims in (slice(h * d, h * d + d) for h in range(heads)):
            e = np.exp(q[:, dims] @ k[:, dims].T / np.sqrt(d))
            mixed.append(e / e.sum(axis=1, keepdims=True) @ v[:, dims])
        x = x + dense(np.concatenate(mixed, axis=1), weights, block + "attention.out")
        hidden = dense(norm(x, weights, block + "norm2"), weights, block + "mlp.up")
        hidden = hidden * 0.5 * (1 + np.vectorize(math.erf)(hidden / math.sqrt(2)))
        x = x + dense(hidden, weights, block + "mlp.down")
    x = norm(x, weights, "norm")
    return dense(x[0] if "cls_token" in weights else x.mean(axis=0), weights, "head.out")


@pytest.mark.parametrize("forward", FORWARDS)
@pytest.mark.parametrize("size", [(4, 4), (6, 8)])
def test_the_answer_is_the_documents_steps_in_numpy(forward, size):
    cls = forward is vit_cls_forward
    config = ViTConfig(
        image_size=size,
        patch_size=2,
        width=8,
        heads=2,
        mlp_width=16,
        depth=2,
        classes=3,
        cls_token=cls,
        pool="cls" if cls else "mean",
    )
    with torch.random.fork_rng():
        torch.manual_seed(5)
        weights = {name: value.double().numpy() for name, value in ViT(config).state_dict().items()}
    assert weights["positions.table"].shape == (size[0] * size[1] // 4 + int(cls), 8)
    picture = image(*size)
    solved = solve_in_numpy(picture.double().numpy(), weights, patch=2, heads=2, depth=2)
    np.testing.assert_allclose(forward(5, picture, **EXAMPLE).numpy(), solved, atol=1e-6)


@pytest.mark.parametrize("forward", FORWARDS)
def test_the_same_seed_gives_the_same_answer_and_another_seed_another(forward):
    first = forward(0, image(), **EXAMPLE)
    torch.manual_seed(123)  # whatever the caller did in between
    assert torch.equal(forward(0, image(), **EXAMPLE), first)
    assert torch.equal(forward(np.int64(0), image(), **EXAMPLE), first)
    assert not torch.equal(forward(1, image(), **EXAMPLE), first)
    assert not torch.equal(forward(0, 2 * image(), **EXAMPLE), first)


@pytest.mark.parametrize("forward", FORWARDS)
def test_the_callers_random_state_is_untouched(forward):
    torch.manual_seed(9)
    states = torch.get_rng_state(), np.random.get_state()[1].copy(), random.getstate()
    forward(0, image(), **EXAMPLE)
    assert torch.equal(torch.get_rng_state(), states[0])
    assert (np.random.get_state()[1] == states[1]).all()
    assert random.getstate() == states[2]


def test_cls_and_mean_are_different_functions():
    assert not torch.allclose(vit_cls_forward(0, image(), **EXAMPLE), vit_mean_forward(0, image(), **EXAMPLE))


def test_mean_pooling_has_no_cls_token_and_n_positions():
    tables = []

    def record(module, inputs, output):
        if isinstance(module, ViT):
            tables.append((module.cls_token, module.positions.table.shape))

    handle = torch.nn.modules.module.register_module_forward_hook(record)
    try:
        logits = vit_mean_forward(0, image(), **EXAMPLE)
    finally:
        handle.remove()
    assert tables == [(None, (4, 8))]
    assert logits.shape == (3,)


@pytest.mark.parametrize("forward", FORWARDS)
def test_an_array_or_a_list_is_as_good_as_a_tensor(forward):
    expected = forward(0, image(), **EXAMPLE)
    assert torch.equal(forward(0, image().numpy(), **EXAMPLE), expected)
    assert torch.equal(forward(0, image().numpy().astype("float64"), **EXAMPLE), expected)
    assert torch.equal(forward(0, image().tolist(), **EXAMPLE), expected)
    whole = torch.arange(48, dtype=torch.uint8).reshape(4, 4, 3)
    assert torch.equal(forward(0, whole, **EXAMPLE), forward(0, whole.float(), **EXAMPLE))


@pytest.mark.parametrize("classes", [1, 2, 10])
@pytest.mark.parametrize("channels", [1, 3, 4])
def test_logits_are_one_dimensional_and_as_long_as_asked(classes, channels):
    logits = vit_cls_forward(0, image(6, 8, channels), **{**EXAMPLE, "num_classes": classes})
    assert logits.shape == (classes,)
    assert not logits.requires_grad


@pytest.mark.parametrize(
    ("shape", "changes", "message"),
    [
        ((5, 4, 3), {}, "height 5.*patch_size 2"),
        ((4, 7, 3), {}, "width 7.*patch_size 2"),
        ((4, 4), {}, r"3 numbers, not \(4, 4\)"),
        ((1, 4, 4, 3), {}, r"3 numbers, not \(1, 4, 4, 3\)"),
        ((0, 4, 3), {}, r"image_size .*not \(0, 4\)"),
        ((4, 4, 0), {}, "channels is 0"),
        ((4, 4, 3), {"num_heads": 3}, "width 8 .* heads 3"),
    ],
)
def test_what_cannot_be_computed_is_refused_with_its_numbers(shape, changes, message):
    with pytest.raises(VitrailError, match=message):
        vit_cls_forward(0, torch.zeros(shape), **{**EXAMPLE, **changes})
