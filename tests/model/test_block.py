"""The block's parts: activations, layer scale, drop path."""

from __future__ import annotations

import math

import pytest
import torch

from vitrail.model.block import MLP, LayerScaleDropPath, activate
from vitrail.model.presets import preset
from vitrail.model.vit import ViT


def tiny(**changes):
    return preset("mu/4", **{"image_size": 16, "classes": 5, **changes})


def silu(x):
    return x / (1 + math.exp(-x))


@pytest.mark.parametrize(
    ("activation", "formula"),
    [
        ("gelu", lambda x: x * 0.5 * (1 + math.erf(x / math.sqrt(2)))),
        ("gelu_tanh", lambda x: x * 0.5 * (1 + math.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))),
        ("quick_gelu", lambda x: x / (1 + math.exp(-1.702 * x))),
    ],
)
def test_an_activation_is_its_formula(activation, formula):
    numbers = [-4.0, -1.0, -0.3, 0.0, 0.3, 1.0, 4.0]
    found = activate(torch.tensor(numbers, dtype=torch.float64), activation)
    expected = torch.tensor([formula(x) for x in numbers], dtype=torch.float64)
    torch.testing.assert_close(found, expected, atol=1e-12, rtol=0)


def test_the_three_gelus_differ():
    x = torch.linspace(-3, 3, 50, dtype=torch.float64)
    gelu, tanh, quick = (activate(x, name) for name in ("gelu", "gelu_tanh", "quick_gelu"))
    assert 1e-5 < (gelu - tanh).abs().max() < 1e-3
    assert 1e-2 < (gelu - quick).abs().max() < 3e-2


def test_swiglu_gates_with_the_first_half():
    gate, value = [-2.0, 0.5, 3.0], [1.0, -4.0, 0.1]
    found = activate(torch.tensor(gate + value, dtype=torch.float64), "swiglu")
    expected = torch.tensor([silu(g) * v for g, v in zip(gate, value, strict=True)], dtype=torch.float64)
    torch.testing.assert_close(found, expected)


def test_the_swiglu_mlp_has_two_maps_up_and_one_down(lively):
    mlp = lively(tiny(activation="swiglu", mlp_width=24)).blocks[0].mlp
    assert (mlp.up.weight.shape, mlp.down.weight.shape) == ((48, 32), (32, 24))
    x = torch.randn(2, 5, 32)
    gate = x @ mlp.up.weight[:24].T + mlp.up.bias[:24]
    value = x @ mlp.up.weight[24:].T + mlp.up.bias[24:]
    torch.testing.assert_close(mlp(x), (gate * torch.sigmoid(gate) * value) @ mlp.down.weight.T + mlp.down.bias)


@pytest.mark.parametrize("activation", ["gelu", "gelu_tanh", "quick_gelu"])
def test_the_mlp_uses_the_configs_activation(lively, activation):
    mlp = lively(tiny(activation=activation)).blocks[0].mlp
    x = torch.randn(2, 5, 32)
    assert isinstance(mlp, MLP)
    torch.testing.assert_close(mlp(x), mlp.down(activate(mlp.up(x), activation)))


# ---- layer scale


def test_layer_scale_starts_at_its_value_for_every_branch():
    model = ViT(tiny(layer_scale=0.25, depth=2))
    scales = [scale for block in model.blocks for scale in (block.branch1.scale, block.branch2.scale)]
    assert all(torch.equal(scale, torch.full((32,), 0.25)) for scale in scales)
    assert len({scale.data_ptr() for scale in scales}) == 4
    assert ViT(tiny()).blocks[0].branch1.scale is None
    assert ViT(tiny(layer_scale=0.0)).blocks[0].branch1.scale.count_nonzero() == 0


def test_layer_scale_multiplies_each_dim_of_both_branches(lively):
    block = lively(tiny(layer_scale=0.5)).blocks[0]
    x = torch.randn(2, 5, 32)
    middle = x + block.attention(block.norm1(x)) * block.branch1.scale
    torch.testing.assert_close(block(x), middle + block.mlp(block.norm2(middle)) * block.branch2.scale)


def test_a_pre_norm_block_of_scale_zero_does_nothing():
    block = ViT(tiny(layer_scale=0.0)).blocks[0]
    x = torch.randn(2, 5, 32)
    assert torch.equal(block(x), x)


# ---- drop path


@pytest.mark.parametrize("rate", [0.1, 0.5, 0.9])
def test_drop_path_drops_whole_images_and_keeps_the_mean(rate):
    torch.manual_seed(0)
    branch = LayerScaleDropPath(rate, "branch").train()
    out = branch(torch.ones(20_000, 3, 2))
    assert torch.equal(out, out[:, :1, :1].expand(-1, 3, 2))  # an image's branch as a whole
    kept = out[:, 0, 0]
    torch.testing.assert_close(kept.unique(), torch.tensor([0, 1 / (1 - rate)]))
    assert (kept == 0).float().mean().item() == pytest.approx(rate, abs=0.02)
    assert kept.mean().item() == pytest.approx(1, abs=0.08)


def test_drop_path_happens_in_training_only():
    branch = LayerScaleDropPath(0.5, "branch")
    x = torch.randn(100, 3, 2)
    assert torch.equal(branch.eval()(x), x)
    assert not torch.equal(branch.train()(x), x)
    assert torch.equal(LayerScaleDropPath(0.0, "branch").train()(x), x)


def test_drop_path_grows_linearly_to_the_last_block():
    rates = [block.branch1.drop_path for block in ViT(tiny(depth=5, drop_path=0.4)).blocks]
    assert rates == pytest.approx([0, 0.1, 0.2, 0.3, 0.4])
    assert [block.branch2.drop_path for block in ViT(tiny(depth=1, drop_path=0.4)).blocks] == [0.4]
