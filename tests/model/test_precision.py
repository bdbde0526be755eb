"""Mixed precision: the encoder in bfloat16, and whatever gives the answer in float32."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from vitrail.errors import VitrailError
from vitrail.model.attention import attention_weights
from vitrail.model.config import ViTConfig
from vitrail.model.precision import autocast
from vitrail.model.vit import ViT

SMALL = {"image_size": 32, "patch_size": 8, "width": 64, "depth": 2, "heads": 2, "classes": 3}
HEADS: list[dict[str, Any]] = [
    {"head": "linear"},
    {"head": "linear", "pool": "attention", "norm": "post", "final_norm": "none"},
    {"head": "linear", "distillation": True},
    {"head": "mlp"},
    {"head": "mask_linear"},
    {"head": "mask_decoder"},
    {"head": "mask_decoder", "stem": "conv"},
    {"head": "mask_queries", "head_bias": False},
    {"head": "box_tokens", "queries": 5},
]


def in_bfloat16(model: ViT, images: Tensor) -> Any:
    with autocast("cpu", "bfloat16"):
        return model(images)


@pytest.mark.parametrize("changes", HEADS, ids=str)
def test_every_heads_answer_has_more_digits_than_bfloat16(lively: Callable[..., ViT], changes: dict[str, Any]) -> None:
    model, images = lively(ViTConfig(**{**SMALL, **changes})), torch.randn(2, 3, 32, 32)
    with torch.no_grad():
        outputs = in_bfloat16(model, images)
        assert not torch.equal(outputs, model(images))  # the encoder does run in bfloat16
    assert outputs.dtype == torch.float32
    parts = outputs.split([outputs.shape[-1] - 4, 4], dim=-1) if "box" in changes["head"] else [outputs]
    for part in parts:  # of boxes, the logits and the coordinates: each has digits that bfloat16 has not
        assert (part != part.bfloat16().float()).float().mean() > 0.9


def test_a_box_decoders_scores_and_boxes_are_computed_in_float32(lively: Callable[..., ViT]) -> None:
    model = lively(ViTConfig(**SMALL, head="box_decoder", queries=5, head_depth=2))
    kinds: dict[str, torch.dtype] = {}
    for name, layer in model.head.named_modules():
        if not list(layer.children()):
            layer.register_forward_hook(lambda _, __, output, name=name: kinds.__setitem__(name, output.dtype))
    in_bfloat16(model, torch.randn(2, 3, 32, 32))
    last = ["propose", "classify.0", "classify.1", "refine.0.layers.1", "refine.1.layers.1"]
    assert {name: kinds[name] for name in last} == dict.fromkeys(last, torch.float32)
    assert kinds["token"] == kinds["blocks.0.up"] == torch.bfloat16


@pytest.mark.parametrize("head", ["linear", "mlp"])
def test_years_are_answered_to_a_fraction_of_a_year(lively: Callable[..., ViT], head: str) -> None:
    """As `Task.fold` leaves a regression: mean and deviation of the targets in the last layer."""
    model, images = lively(ViTConfig(**{**SMALL, "head": head, "classes": 1})), torch.randn(64, 3, 32, 32)
    with torch.no_grad():
        spread, mean = model(images).std(), model(images).mean()
        (layer,) = model.output_layers()
        layer.weight.mul_(4 / spread)
        layer.bias.sub_(mean).mul_(4 / spread).add_(2007.5)
        exact, mixed = model(images), in_bfloat16(model, images)
    assert exact.std() == pytest.approx(4, rel=1e-3)
    assert (mixed - exact).abs().max() < 0.5  # a step of bfloat16 at 2007 is 8


def test_training_has_float32_outputs_and_gradients_for_every_weight(lively: Callable[..., ViT]) -> None:
    model = lively(ViTConfig(**{**SMALL, "head": "mlp"})).train()
    outputs = in_bfloat16(model, torch.randn(2, 3, 32, 32))
    assert outputs.dtype == torch.float32
    outputs.square().sum().backward()
    assert all(parameter.grad is not None and parameter.grad.any() for parameter in model.parameters())


def test_both_spellings_and_nothing_else() -> None:
    for name, enabled in {"bf16": True, "bfloat16": True, "fp32": False, "float32": False}.items():
        with autocast("cpu", name):
            assert torch.is_autocast_enabled("cpu") is enabled
    with pytest.raises(VitrailError, match="the precision is 'half'; choose one of auto, fp32, bf16"):
        autocast("cpu", "half")


def test_attention_to_look_at_is_float32_in_mixed_precision() -> None:
    q, k = torch.randn(1, 2, 5, 8), torch.randn(1, 2, 7, 8)
    with autocast("cpu", "bfloat16"):
        weights = attention_weights(q.bfloat16(), k.bfloat16())
    assert weights.dtype == torch.float32
    assert torch.equal(weights, attention_weights(q.bfloat16(), k.bfloat16()))
