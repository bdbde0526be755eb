"""Token merging: by hand in small cases, by another way of counting in whole networks, and in other runtimes."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch

from vitrail.errors import VitrailError
from vitrail.graphs.graph_file import IMAGES, OUTPUTS
from vitrail.graphs.no_telemetry import import_silently
from vitrail.graphs.onnx_graph import onnx_model
from vitrail.graphs.openvino_graph import openvino_model
from vitrail.graphs.trace import trace
from vitrail.model.efficient.token_merging import TokenMerging, merges_in_blocks, places
from vitrail.model.encoder import Capture
from vitrail.model.presets import build_network, preset
from vitrail.weights.checkpoint import Checkpoint
from vitrail.weights.preprocessing import Preprocessing

SETTINGS = {
    "[CLS]": {},
    "distilled, registers": {"distillation": True, "registers": 2},
    "mean": {"pool": "mean"},
    "mean without [CLS]": {"pool": "mean", "cls_token": False},
    "attention": {"pool": "attention"},
    "post-norm": {"norm": "post"},
    "no head": {"classes": 0},
}


def small(**changes):
    return preset("mu/4", **{"image_size": 16, "classes": 5, "depth": 3, **changes})


def pictures(count=3, seed=0):
    return torch.randn(count, 3, 16, 16, generator=torch.Generator().manual_seed(seed))


# Two dims are enough to count by hand: tokens are compared by the angles of their keys, here in degrees.


def at_angles(*degrees):
    angles = torch.tensor(degrees, dtype=torch.float64).deg2rad()
    return torch.stack([angles.cos(), angles.sin()], dim=-1)  # (M, 2)


# [CLS], then sources at 0, 50, 94 and targets at 40, 100, 200 degrees between them. The nearest target is 40, 10 and 6
# degrees away: the first source to merge is the one at 94 (into 100), then the one at 50 (into 40), then that at 0.
ANGLES = at_angles(95, 0, 40, 50, 100, 94, 200)
VALUES = torch.tensor([7.0, 1.0, 10.0, 2.0, 20.0, 4.0, 30.0])


@pytest.mark.parametrize(
    ("r", "left", "sizes"),
    [
        (0, [7, 1, 10, 2, 20, 4, 30], [1, 1, 1, 1, 1, 1, 1]),
        (1, [7, 1, 10, 2, 12, 30], [1, 1, 1, 1, 2, 1]),
        (2, [7, 1, 6, 12, 30], [1, 1, 2, 2, 1]),
        (3, [7, 13 / 3, 12, 30], [1, 3, 2, 1]),
    ],
)
def test_the_likest_are_merged_and_cls_never_is(r, left, sizes):
    x, merging = TokenMerging((), prefix=1).merge(VALUES[None, :, None], ANGLES.float()[None, None], r)
    torch.testing.assert_close(x[0, :, 0], torch.tensor(left, dtype=torch.float32))
    counted = torch.ones(7) if merging.sizes is None else merging.sizes[0, :, 0]
    assert counted.tolist() == sizes


def test_a_merged_token_is_the_mean_of_the_patches_that_it_stands_for():
    sizes = torch.tensor([1.0, 1, 3, 5, 1, 1, 1])[None, :, None]
    x, merging = TokenMerging((), 1, sizes).merge(VALUES[None, :, None], ANGLES.float()[None, None], 2)
    torch.testing.assert_close(x[0, :, 0], torch.tensor([7, 1, (3 * 10 + 5 * 2) / 8, 12, 30]))
    assert merging.sizes[0, :, 0].tolist() == [1, 1, 8, 2, 1]


def test_two_sources_may_have_the_same_target():
    keys = at_angles(29, 30, 31, 200)  # without a prefix: sources at 29 and 31, targets at 30 and 200
    x, merging = TokenMerging((), 0).merge(torch.tensor([1.0, 2, 6, 9])[None, :, None], keys.float()[None, None], 2)
    assert (x[0, :, 0].tolist(), merging.sizes[0, :, 0].tolist()) == ([3, 9], [3, 1])


def test_keys_are_averaged_over_the_heads():
    heads = torch.randn(2, 4, 9, 8, generator=torch.Generator().manual_seed(1))
    mean = sum(heads.unbind(1)) / 4
    x = torch.randn(2, 9, 6, generator=torch.Generator().manual_seed(2))
    found = TokenMerging((), 1).merge(x, heads, 3)[0]
    torch.testing.assert_close(found, TokenMerging((), 1).merge(x, mean[:, None], 3)[0])


def test_pairs_are_those_of_the_definition():
    """Every source and target is compared, in plain loops."""
    metric = torch.randn(4, 21, 8, generator=torch.Generator().manual_seed(3))
    sources, targets = range(2, 21, 2), range(3, 21, 2)
    for image, found in zip(metric, places(metric, 6, prefix=2), strict=True):
        unit = image / image.norm(dim=1, keepdim=True)
        likeness = {pair: float(unit[pair[0]] @ unit[pair[1]]) for pair in itertools.product(sources, targets)}
        best = {s: max(targets, key=lambda t, s=s: likeness[s, t]) for s in sources}
        merged = sorted(sources, key=lambda s: -likeness[s, best[s]])[:6]
        left = [token for token in range(21) if token not in merged]
        assert found.tolist() == [left.index(best[token] if token in merged else token) for token in range(21)]


def test_exactly_so_many_are_merged_where_all_are_alike():
    for r in range(1, 5):
        x, merging = TokenMerging((), 1).merge(torch.ones(2, 9, 4), torch.ones(2, 3, 9, 8), r)
        assert x.shape == (2, 9 - r, 4)
        assert merging.sizes.sum(dim=(1, 2)).tolist() == [9, 9]


def test_a_token_that_is_left_is_the_same_to_the_last_bit():
    """Also in mixed precision, where a product of matrices would round it to bfloat16."""
    generator = torch.Generator().manual_seed(6)
    x, keys = torch.randn(2, 9, 6, generator=generator), torch.randn(2, 1, 9, 8, generator=generator)
    with torch.autocast("cpu", torch.bfloat16):
        left, merging = TokenMerging((), 1).merge(x, keys, 2)
    for image, tokens, sizes in zip(x, left, merging.sizes[..., 0], strict=True):
        alone = {tuple(token.tolist()) for token in tokens[sizes == 1]}
        assert len(alone) >= 5 and alone <= {tuple(token.tolist()) for token in image}


# Whole networks


def merged_slowly(network, images, counts):
    """The same in plain steps: an attention matrix, a softmax that counts a token of size s as s tokens, no fusion."""
    x, *_ = network.embed(images)
    sizes, prefix = torch.ones(*x.shape[:2]), network.prefix
    for index, block in enumerate(network.blocks):
        q, k, v = block.attention.project(block.attention_input(x), None, None)
        scores = (q @ k.transpose(-2, -1) / q.shape[-1] ** 0.5).exp() * sizes[:, None, None]
        mixed = (scores / scores.sum(-1, keepdim=True)) @ v
        x = x + block.attention.out(mixed.transpose(1, 2).flatten(2))
        x = x if block.pre else block.norm1(x)
        x, sizes = merged_by_loops(x, k.mean(1), sizes, counts[index], prefix)
        y = block.mlp(block.norm2(x) if block.pre else x)
        x = x + y if block.pre else block.norm2(x + y)
    return x, sizes


def merged_by_loops(x, keys, sizes, r, prefix):
    tokens, counts = [], []
    for image, key, size in zip(x, keys, sizes, strict=True):
        unit = key / key.norm(dim=1, keepdim=True)
        sources, targets = range(prefix, len(image), 2), range(prefix + 1, len(image), 2)
        best = {s: max(targets, key=lambda t, s=s: float(unit[s] @ unit[t])) for s in sources}
        chosen = sorted(sources, key=lambda s: -float(unit[s] @ unit[best[s]]))
        groups = {t: [t] for t in targets}
        for s in chosen[:r]:
            groups[best[s]].append(s)
        kept = [groups.get(i, [i]) for i in range(len(image)) if i not in chosen[:r]]
        tokens.append(torch.stack([(image[g] * size[g, None]).sum(0) / size[g].sum() for g in kept]))
        counts.append(torch.stack([size[g].sum() for g in kept]))
    return torch.stack(tokens), torch.stack(counts)


@pytest.mark.parametrize("name", SETTINGS)
@torch.no_grad()
def test_a_merging_network_computes_what_the_paper_says(lively, name):
    network, images = lively(small(**SETTINGS[name])), pictures()
    x, sizes = merged_slowly(network, images, [3, 3, 0])
    x = network.norm_tokens(x)
    prefix = network.prefix
    patches = (x * sizes[..., None])[:, prefix:].sum(1) / 16  # each of the 16 patches counts once
    if network.config.pool == "attention":
        repeated = [image.repeat_interleave(size.long(), 0) for image, size in zip(x, sizes, strict=True)]
        pooled = network.pool(torch.stack(repeated))
    else:
        pooled = patches if network.config.pool == "mean" else x[:, 0]
    expected = network.head(pooled) if network.head is not None else pooled
    if network.distillation_head is not None:
        expected = (expected + network.distillation_head(x[:, 1])) / 2
    torch.testing.assert_close(network.with_merged_tokens(2)(images), expected, atol=2e-5, rtol=1e-5)
    assert sizes.sum(1).tolist() == [prefix + 16] * 3


@pytest.mark.parametrize("name", SETTINGS)
@torch.no_grad()
def test_without_merging_nothing_changes_by_a_bit(lively, name):
    network, images = lively(small(**SETTINGS[name])), pictures()
    assert torch.equal(network.with_merged_tokens(0)(images), network(images))
    merging = network.with_merged_tokens(3)
    assert not torch.equal(merging(images), network(images))
    assert network.merge_tokens == 0 and merging.blocks is network.blocks


@torch.no_grad()
def test_an_images_answer_does_not_depend_on_its_batch(lively):
    merging, images = lively(small(pool="mean")).with_merged_tokens(3), pictures(4)
    alone = torch.cat([merging(image[None]) for image in images])
    torch.testing.assert_close(merging(images), alone, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(merging(images.flip(0)), alone.flip(0), atol=1e-5, rtol=1e-5)


@torch.no_grad()
def test_equal_patches_are_merged_for_nothing(lively):
    """Copies of one token: a token of size s counts as much as s of them, so the answer stays the same."""
    network = lively(small(positions="none", pool="mean"))
    plain = torch.ones(2, 3, 16, 16) * torch.tensor([0.3, -1.0])[:, None, None, None]
    torch.testing.assert_close(network.with_merged_tokens(4)(plain), network(plain), atol=1e-5, rtol=1e-5)


@torch.no_grad()
def test_who_looks_inside_sees_all_tokens(lively):
    network, images = lively(small()), pictures()
    merging, capture = network.with_merged_tokens(3), Capture(blocks=[1])
    assert torch.equal(merging(images, capture=capture), network(images))
    assert capture.steps[1].input.shape[1] == 17
    assert merging.features(images).patches.shape == (3, 16, 32)
    pooled = Capture()
    outputs = merging(images, capture=pooled)
    torch.testing.assert_close(network.head(pooled.pooled), outputs)
    assert not torch.equal(outputs, network(images))


def test_how_many_each_block_merges():
    assert merges_in_blocks(preset("S/16"), 8) == [0, 0, 0, 48, 0, 0, 48, 0, 0, 0, 0, 0]
    assert merges_in_blocks(preset("S/16"), 16) == [0, 0, 0, 96, 0, 0, 50, 0, 0, 0, 0, 0]  # half of 100 are left
    assert merges_in_blocks(small(), 0) == [0, 0, 0]
    assert merges_in_blocks(small(), 1) == [2, 1, 0]
    assert merges_in_blocks(small(), 9) == merges_in_blocks(small(), 99) == [8, 4, 0]
    assert merges_in_blocks(small(), 7, patches=64) == [11, 10, 0]
    assert merges_in_blocks(small(depth=2), 3) == [6, 0]  # [CLS] alone is read after the last block
    assert merges_in_blocks(small(depth=2, pool="mean"), 3) == [3, 3]
    assert merges_in_blocks(small(depth=1), 3) == [0]


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        (small(positions="rotary"), "rotary positions"),
        (small(positions="none", relative_bias=True), "relative positions"),
        (small(attention_window=2), "attention windows"),
        (small(pool="none"), "pool 'none'"),
        (small(head="mask_linear"), "the head mask_linear"),
        (preset("swin-mu", image_size=64), "plain ViT"),
    ],
)
def test_what_cannot_merge_is_refused_in_one_sentence(config, reason):
    with pytest.raises(VitrailError, match=reason):
        build_network(config).with_merged_tokens(2)


def test_fewer_than_no_tokens_are_refused(lively):
    with pytest.raises(VitrailError, match="merge_tokens is -1"):
        lively(small()).with_merged_tokens(-1)


@pytest.mark.parametrize("name", ["[CLS]", "attention"])
@torch.no_grad()
def test_both_runtimes_merge_as_torch_does(lively, name):
    network = lively(small(**SETTINGS[name])).with_merged_tokens(3)
    program = trace(Checkpoint(network, Preprocessing(size=(16, 16))), (16, 24))
    images = torch.randn(3, 3, 16, 24, generator=torch.Generator().manual_seed(5))
    expected = network(images).numpy()
    import onnxruntime

    session = onnxruntime.InferenceSession(onnx_model(program).SerializeToString())
    np.testing.assert_allclose(session.run([OUTPUTS], {IMAGES: images.numpy()})[0], expected, atol=1e-4)
    openvino = import_silently("openvino")
    compiled = openvino.Core().compile_model(openvino_model(program), "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
    np.testing.assert_allclose(compiled({IMAGES: images.numpy()})[OUTPUTS], expected, atol=1e-4)
