"""Attention inside windows against an independent reference: full attention with an explicit mask."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from vitrail.errors import VitrailError
from vitrail.explanation.forward_pass import run_steps
from vitrail.explanation.methods.attention_maps import attention_maps, attention_of_all
from vitrail.explanation.methods.rollout import rollout
from vitrail.explanation.methods.weighted_attention import weighted_attention
from vitrail.explanation.target_score import TargetScore
from vitrail.explanation.walk.walk import walk
from vitrail.explanation.walk.walk_block import block_steps
from vitrail.model.config import ViTConfig
from vitrail.model.cost import cost, multiply_adds
from vitrail.model.positions import rotate
from vitrail.model.vit import ViT

SIZES = [(32, 32), (40, 56), (24, 72), (8, 8)]  # 8 x 8 patches, 10 x 14, 6 x 18, 2 x 2


def config_of(**changes: object) -> ViTConfig:
    base = {"image_size": 32, "patch_size": 4, "width": 32, "depth": 4, "heads": 4, "classes": 5, "mlp_width": 48}
    return ViTConfig(**{**base, "attention_window": 3, **changes})


VARIANTS: dict[str, dict] = {
    "[CLS]": {},
    "no prefix": {"cls_token": False, "pool": "mean"},
    "registers": {"registers": 3},
    "rotary": {"positions": "rotary", "registers": 1},
    "2-D sines, post-norm": {"positions": "sincos2d", "norm": "post"},
    "qk norm, layer scale, swiglu": {"qk_norm": True, "layer_scale": 0.5, "activation": "swiglu"},
    "distilled": {"distillation": True},
    "mask queries": {"head": "mask_queries", "cls_token": False, "pool": "mean"},
    "attention pool": {"pool": "attention", "cls_token": False},
    "windows in all blocks": {"global_blocks": 0},
    "windows in no block": {"global_blocks": 4},
}


# ---- the reference: which token may look at which, written down pair by pair


def allowed(prefix: int, grid: tuple[int, int], window: int) -> Tensor:
    """(M, M) of bool."""
    height, width = grid
    home = [None] * prefix + [(row // window, column // window) for row in range(height) for column in range(width)]
    return torch.tensor([[a is None or b is None or a == b for b in home] for a in home])


def reference_blocks(model: ViT, images: Tensor, global_blocks: set[int]) -> list[Tensor]:
    """Every block's output by plain full attention with a mask, from the model's weights alone."""
    x, rope, grid, _ = model.embed(images)
    mask = allowed(model.config.prefix, grid, model.config.attention_window)
    outputs = []
    for index, block in enumerate(model.blocks):
        attention = block.attention
        u = block.norm1(x) if block.pre else x
        q, k, v = attention.qkv(u).unflatten(2, (3, model.config.heads, -1)).permute(2, 0, 3, 1, 4)
        if attention.q_norm is not None:
            q, k = attention.q_norm(q), attention.k_norm(k)
        if rope is not None:
            q, k = rotate(q, rope), rotate(k, rope)
        scores = q @ k.transpose(-2, -1) / model.config.head_dim**0.5
        if index not in global_blocks:
            scores = scores.masked_fill(~mask, float("-inf"))
        heads = scores.softmax(-1) @ v
        x1 = x + block.branch1(attention.out(heads.transpose(1, 2).flatten(2)))
        if block.pre:
            x = x1 + block.branch2(block.mlp(block.norm2(x1)))
        else:
            x1 = block.norm1(x1)
            x = block.norm2(x1 + block.branch2(block.mlp(x1)))
        outputs.append(x)
    return outputs


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("changes", VARIANTS.values(), ids=VARIANTS)
def test_every_block_is_masked_full_attention(changes: dict, size: tuple[int, int], lively: Callable) -> None:
    model = lively(config_of(**changes)).double()
    images = torch.randn(2, 3, *size, dtype=torch.float64)
    expected = reference_blocks(model, images, {0: set(), 1: {3}, 4: {0, 1, 2, 3}}[model.config.global_blocks])
    with torch.no_grad():
        found = model.features(images, blocks=range(4)).blocks
        answer = model(images)  # where only [CLS] is carried through the last block
        own = model.answer(expected[-1]) if not model.config.is_dense else answer
    for ours, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(ours, theirs, atol=1e-9, rtol=1e-9)
    torch.testing.assert_close(answer, own, atol=1e-9, rtol=1e-9)


def test_windows_differ_from_full_attention(lively: Callable) -> None:
    model, images = lively(config_of()), torch.randn(1, 3, 32, 32)
    full = ViT(model.config.replace(attention_window=0)).eval()
    full.load_state_dict(model.state_dict())  # the same weights
    assert (full(images) - model(images)).abs().max() > 1e-3


@pytest.mark.parametrize("window", [8, 9, 100])
def test_a_window_that_covers_the_grid_is_full_attention(window: int, lively: Callable) -> None:
    model, images = lively(config_of(attention_window=window, global_blocks=0)), torch.randn(2, 3, 32, 32)
    full = ViT(model.config.replace(attention_window=0)).eval()
    full.load_state_dict(model.state_dict())
    assert torch.equal(full(images), model(images))
    assert torch.equal(full.features(images).patches, model.features(images).patches)


def test_gradients_are_those_of_masked_attention(lively: Callable) -> None:
    model = lively(config_of(global_blocks=0)).double()
    images = torch.randn(1, 3, 40, 56, dtype=torch.float64)
    model.features(images, blocks=[-1]).blocks[0].square().sum().backward()
    found = {name: parameter.grad.clone() for name, parameter in model.blocks.named_parameters()}
    model.zero_grad()
    reference_blocks(model, images, set())[-1].square().sum().backward()
    for name, parameter in model.blocks.named_parameters():
        torch.testing.assert_close(found[name], parameter.grad, atol=1e-8, rtol=1e-8)


def test_training_with_checkpointing_in_half_precision(lively: Callable) -> None:
    model = lively(config_of(depth=2, drop_path=0.1, attention_dropout=0.1)).train()
    model.checkpointing = True
    with torch.autocast("cpu", torch.bfloat16):
        loss = model(torch.randn(2, 3, 32, 44)).square().sum()
    loss.backward()
    assert all(parameter.grad is not None for parameter in model.blocks.parameters())


# ---- which blocks are global


@pytest.mark.parametrize(
    ("depth", "blocks", "expected"),
    [
        (12, None, [2, 5, 8, 11]),  # as in ViTDet's B
        (24, None, [5, 11, 17, 23]),  # L
        (32, None, [7, 15, 23, 31]),  # H
        (4, None, [3]),
        (1, None, [0]),
        (5, 2, [1, 4]),
        (3, 0, []),
        (3, 3, [0, 1, 2]),
    ],
)
def test_global_blocks_are_evenly_spaced_and_the_last_is_one(depth: int, blocks: int | None, expected: list) -> None:
    config = config_of(depth=depth, global_blocks=blocks)
    assert [index for index, window in enumerate(config.block_windows) if not window] == expected
    assert set(config.block_windows) <= {0, 3}


def test_the_usual_number_of_global_blocks_follows_the_depth() -> None:
    config = config_of(depth=12)
    assert config.global_blocks == 4 and config.replace(depth=6).global_blocks == 2
    assert config.replace(attention_window=0).global_blocks == 0
    assert config.replace(attention_window=0).replace(attention_window=5).global_blocks == 4
    assert ViTConfig.from_json(config.to_json()) == config


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"attention_window": -1}, "attention_window is -1"),
        ({"global_blocks": -1}, "global_blocks is -1"),
        ({"global_blocks": 5}, "global_blocks 5 of a depth of 4"),
        ({"attention_window": 0, "global_blocks": 2}, "global_blocks 2 goes with attention_window"),
    ],
)
def test_what_cannot_be_built_is_named(changes: dict, words: str) -> None:
    with pytest.raises(VitrailError, match=words):
        config_of(**changes)


def test_tokens_cannot_be_left_out(lively: Callable) -> None:
    with pytest.raises(VitrailError, match="attention_window.*keep"):
        lively(config_of())(torch.randn(1, 3, 32, 32), keep=torch.arange(8))


# ---- looking inside


@pytest.mark.parametrize("changes", [{}, {"registers": 2, "positions": "rotary"}, {"cls_token": False, "pool": "mean"}])
def test_attention_rows_are_those_of_the_mask(changes: dict, lively: Callable) -> None:
    model, images = lively(config_of(**changes)), torch.randn(1, 3, 40, 56)
    mask = allowed(model.config.prefix, (10, 14), 3)
    for step in model.steps(model.embed(images)):
        rows = torch.cat([rows for _, rows in step.attention()], dim=2)  # (1, heads, M, M)
        torch.testing.assert_close(rows.sum(-1), torch.ones(rows.shape[:3]))
        outside = rows[..., ~mask]
        assert (outside == 0).all() if step.index < 3 else (outside > 0).all()
        q, k, v = step.qkv()
        with_mask = F.scaled_dot_product_attention(q, k, v, attn_mask=mask if step.index < 3 else None)
        torch.testing.assert_close(rows @ v, with_mask, atol=1e-5, rtol=1e-4)


def test_explanations_see_the_windows(lively: Callable) -> None:
    model, images = lively(config_of(global_blocks=0)), torch.randn(1, 3, 40, 56)
    [maps] = attention_maps(model, images, query=(0, 0), blocks=[1])
    assert (maps.patches[..., 3:, :] == 0).all() and (maps.patches[..., :3, :3] > 0).all()
    for _, groups in attention_of_all(model, images, blocks=[0]):
        seen = torch.zeros(141, 141, dtype=torch.bool)
        for queries, keys, weights in groups:
            seen[queries[:, None], keys] = weights[0] > 0
        assert torch.equal(seen, allowed(1, (10, 14), 3))
    rolled = rollout(model, images)
    torch.testing.assert_close(rolled.patches.sum() + rolled.prefix.sum(), torch.tensor(1.0))
    outputs = model(images).detach()
    weighted = weighted_attention(model, images, TargetScore("classify", outputs, outputs.argmax(1)))
    assert weighted.patches.shape == (1, 10, 14) and weighted.patches.isfinite().all()


@torch.no_grad()
def test_the_walk_says_what_a_window_is_and_ends_with_the_models_answer(lively: Callable) -> None:
    model, images = lively(config_of(global_blocks=0)), torch.randn(1, 3, 40, 56)
    shown = walk(model, images, np.zeros((40, 56, 3), np.uint8), block=-1)
    said = [step.text for step in shown.steps if "window of 3 × 3 patches" in step.text]  # noqa: RUF001
    assert len(said) == 1 and f"{141**2:,}" in said[0]
    torch.testing.assert_close(torch.tensor(shown.outputs), model(images)[0].detach(), atol=1e-4, rtol=1e-4)
    for step in run_steps(model, images):
        torch.testing.assert_close(block_steps(model, step, 5)[1], step.output, atol=1e-4, rtol=1e-4)


# ---- cost


@pytest.mark.parametrize("size", [(32, 32), (40, 56), (24, 72)])
@pytest.mark.parametrize("changes", [{}, {"registers": 3}, {"global_blocks": 0}, {"cls_token": False, "pool": "mean"}])
def test_multiply_adds_are_those_that_are_run(changes: dict, size: tuple[int, int]) -> None:
    from torch.nn.attention import SDPBackend, sdpa_kernel

    config = config_of(**changes).replace(image_size=size)
    model = ViT(config).eval()
    with torch.no_grad(), sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        model.answer(model.encode(model.embed(torch.zeros(1, 3, *size))))
    assert counter.get_total_flops() // 2 == multiply_adds(config)


def test_work_grows_in_line_with_the_image() -> None:
    config = config_of(global_blocks=0, cls_token=False, pool="mean", classes=0)
    small, large = (multiply_adds(config.replace(image_size=side)) for side in (48, 96))  # 12 and 24 patches a side
    assert large == 4 * small
    assert cost(config, 48).window_entries == 9 * 144 and cost(config, 48).attention_entries == 144**2
