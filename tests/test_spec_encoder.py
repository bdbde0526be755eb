"""SPEC 3: the encoder."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from vitrail.errors import VitrailError
from vitrail.model.attention import SelfAttention
from vitrail.model.block import Block
from vitrail.model.config import ViTConfig
from vitrail.model.patches import patchify
from vitrail.model.presets import preset
from vitrail.model.vit import ViT


def tiny(**changes):
    return preset("mu/4", **{"image_size": 8, "classes": 5, "width": 8, "heads": 2, **changes})


# ---- references, straight from the formulas, one number at a time where that is bearable


def slow_attention(x, attention):
    """softmax(Q_i K_i^T / sqrt(D/h)) V_i for each image and head, concatenated, times W_O."""
    batch, tokens, width = x.shape
    d = width // attention.heads
    w_q, w_k, w_v = attention.qkv.weight.split(width)
    b_q, b_k, b_v = attention.qkv.bias.split(width)
    out = torch.zeros_like(x)
    for b in range(batch):
        q, k, v = x[b] @ w_q.T + b_q, x[b] @ w_k.T + b_k, x[b] @ w_v.T + b_v  # (M, D)
        for head in range(attention.heads):
            dims = range(head * d, head * d + d)
            for i in range(tokens):
                scores = [sum(q[i, n].item() * k[j, n].item() for n in dims) / math.sqrt(d) for j in range(tokens)]
                exponentials = [math.exp(score) for score in scores]
                weights = [e / sum(exponentials) for e in exponentials]
                for n in dims:
                    out[b, i, n] = sum(weight * v[j, n].item() for j, weight in enumerate(weights))
    return out @ attention.out.weight.T + attention.out.bias


def slow_norm(x, norm):
    """Each token by itself: mean 0 and variance 1 over D, then the learned scale and shift."""
    mean = x.sum(-1, keepdim=True) / x.shape[-1]
    variance = ((x - mean) ** 2).sum(-1, keepdim=True) / x.shape[-1]
    return (x - mean) / (variance + 1e-6).sqrt() * norm.weight + norm.bias


def slow_mlp(x, mlp):
    """D -> 4 D -> D with GELU(x) = x Phi(x)."""
    hidden = x @ mlp.up.weight.T + mlp.up.bias
    hidden = hidden * 0.5 * (1 + torch.erf(hidden / math.sqrt(2)))
    return hidden @ mlp.down.weight.T + mlp.down.bias


@torch.no_grad()
def slow_pre_norm(x, block):
    x = x + slow_attention(slow_norm(x, block.norm1), block.attention)
    return x + slow_mlp(slow_norm(x, block.norm2), block.mlp)


@torch.no_grad()
def slow_post_norm(x, block):
    x = slow_norm(x + slow_attention(x, block.attention), block.norm1)
    return slow_norm(x + slow_mlp(x, block.mlp), block.norm2)


# ---- the blocks


@pytest.mark.parametrize("heads", [1, 2, 8])
def test_attention_is_the_formula(lively, heads):
    attention = lively(tiny(heads=heads)).double().blocks[0].attention
    x = torch.randn(2, 5, 8).double()
    torch.testing.assert_close(attention(x), slow_attention(x, attention))


@pytest.mark.parametrize(("norm", "reference"), [("pre", slow_pre_norm), ("post", slow_post_norm)])
def test_a_block_is_the_formula(lively, norm, reference):
    block = lively(tiny(norm=norm)).double().blocks[0]
    x = torch.randn(2, 5, 8).double()
    torch.testing.assert_close(block(x), reference(x, block))


@pytest.mark.parametrize(("norm", "reference"), [("pre", slow_pre_norm), ("post", slow_post_norm)])
def test_a_whole_model_is_the_formulas_one_after_another(lively, norm, reference):
    model = lively(tiny(norm=norm, depth=3)).double()
    images = torch.randn(2, 3, 8, 8).double()
    with torch.no_grad():
        x = patchify(images, (4, 4)) @ model.stem.projection.weight.T + model.stem.projection.bias
        x = torch.cat([model.cls_token.expand(2, 1, -1), x], dim=1) + model.positions.table
        for block in model.blocks:
            x = reference(x, block)
        if norm == "pre":
            x = slow_norm(x, model.norm)  # one norm after the last block
        logits = x[:, 0] @ model.head.out.weight.T + model.head.out.bias
    torch.testing.assert_close(model.features(images).patches, x[:, 1:])
    torch.testing.assert_close(model(images), logits)


def test_pre_norm_is_the_default_with_one_norm_after_the_last_block():
    config = ViTConfig()
    assert (config.norm, config.final_norm) == ("pre", "tokens")
    assert isinstance(ViT(tiny()).norm, nn.LayerNorm)


def test_post_norm_has_no_norm_after_the_last_block():
    assert ViTConfig(norm="post").final_norm == "none"
    assert ViT(tiny(norm="post")).norm is None


def test_all_blocks_are_built_alike_and_share_nothing():
    model = ViT(tiny(depth=3))
    shapes = [[(name, p.shape) for name, p in block.named_parameters()] for block in model.blocks]
    assert len(shapes) == 3
    assert shapes[0] == shapes[1] == shapes[2]
    pointers = {p.data_ptr() for block in model.blocks for p in block.parameters()}
    assert len(pointers) == 3 * len(shapes[0])


@pytest.mark.parametrize("norm", ["pre", "post"])
def test_a_block_keeps_the_shape(norm):
    block = ViT(tiny(norm=norm)).blocks[0]
    for shape in [(1, 1, 8), (2, 5, 8), (3, 197, 8)]:
        assert block(torch.randn(shape)).shape == shape


# ---- layer norm


def test_layer_norm_is_per_token_and_independent_of_the_batch(lively):
    norm = lively(tiny()).double().blocks[0].norm1
    x = torch.randn(4, 5, 8).double()
    whole = norm(x)
    for b in range(4):
        for t in range(5):
            torch.testing.assert_close(norm(x[b, t]), whole[b, t])
    assert (norm.weight.shape, norm.bias.shape) == ((8,), (8,))
    plain = (whole - norm.bias) / norm.weight
    torch.testing.assert_close(plain.mean(-1), torch.zeros(4, 5).double(), atol=1e-6, rtol=0)
    torch.testing.assert_close(plain.var(-1, unbiased=False), torch.ones(4, 5).double(), atol=1e-4, rtol=0)


@pytest.mark.parametrize("training", [False, True])
def test_an_images_answer_does_not_depend_on_its_batch(lively, training):
    model = lively(tiny(depth=2)).double().train(training)
    images = torch.randn(4, 3, 8, 8).double()
    one_by_one = torch.cat([model(image[None]) for image in images])
    torch.testing.assert_close(model(images), one_by_one)


# ---- heads and MLP


@pytest.mark.parametrize(("width", "heads"), [(8, 3), (384, 7), (768, 16 * 3 + 1)])
def test_a_width_that_the_heads_do_not_divide_is_refused_with_both_numbers(width, heads):
    with pytest.raises(VitrailError, match=f"width {width} .* heads {heads}"):
        ViTConfig(width=width, heads=heads)


def test_heads_have_width_d_over_h_and_the_maps_are_d_by_d():
    attention = SelfAttention(ViTConfig())  # S/16
    assert (attention.heads, attention.head_dim) == (6, 64)
    assert attention.qkv.weight.shape == (3 * 384, 384)  # Q, K and V, D x D each
    assert attention.out.weight.shape == (384, 384)
    q, k, v = attention.project(torch.randn(2, 5, 384), None, None)
    assert q.shape == k.shape == v.shape == (2, 6, 5, 64)


def test_the_mlp_is_4_d_wide_unless_another_factor_is_asked_for():
    assert ViTConfig(width=384).mlp_width == 1536
    assert Block(tiny(), 0.0).mlp.up.weight.shape == (32, 8)
    mlp = Block(tiny(mlp_width=20), 0.0).mlp
    assert (mlp.up.weight.shape, mlp.down.weight.shape) == ((20, 8), (8, 20))


def test_dropout_falls_after_each_step_of_the_mlp():
    mlp = Block(tiny(dropout=0.5), 0.0).mlp.train()
    with torch.no_grad():
        mlp.up.weight.zero_()
        mlp.up.bias.fill_(10.0)  # gelu(10) = 10 in every hidden place
        mlp.down.weight.fill_(1.0)
        mlp.down.bias.zero_()
    torch.manual_seed(0)
    out = mlp(torch.zeros(2000, 1, 8))
    assert 0.4 < (out == 0).float().mean() < 0.6  # after the way down: half of the places
    kept = out[out != 0] / 2 / 10  # after the way up: twice the number of the 32 hidden places that were kept
    assert kept.mean().item() == pytest.approx(32, rel=0.02)
    assert kept.std().item() == pytest.approx(2 * math.sqrt(32 / 4), rel=0.1)
    assert torch.equal(mlp.eval()(torch.zeros(1, 1, 8)), torch.full((1, 1, 8), 320.0))


@pytest.mark.parametrize("norm", ["pre", "post"])
def test_drop_path_is_on_both_residual_branches(lively, norm):
    """An image whose two branches were dropped leaves a pre-norm block as it came."""
    block = lively(tiny(norm=norm, drop_path=0.5)).blocks[0].train()
    assert block.branch1.drop_path == block.branch2.drop_path == 0.5
    x = torch.randn(1, 5, 8)
    torch.manual_seed(0)
    out = block(x.expand(400, -1, -1))
    kinds = out.detach().round(decimals=3).flatten(1).unique(dim=0)
    assert len(kinds) == 4  # each branch dropped or not
    neither = x if norm == "pre" else block.norm2(block.norm1(x))
    dropped = torch.isclose(out, neither, atol=1e-5).all(-1).all(-1).float().mean().item()
    assert dropped == pytest.approx(0.25, abs=0.08)


# ---- the documents' table of shapes


def test_the_shapes_at_each_stage():
    config = tiny(image_size=(8, 12), depth=2, width=16)
    model = ViT(config)
    images = torch.randn(2, 3, 8, 12)  # (B, C, H, W)
    assert patchify(images, (4, 4)).shape == (2, 6, 48)  # (B, N, P^2 C)
    assert model.stem(images).shape == (2, 6, 16)  # (B, N, D)
    x, *_ = model.embed(images)
    assert x.shape == (2, 7, 16)  # (B, N+1, D)
    features = model.features(images, blocks=[0, 1])
    assert [block.shape for block in features.blocks] == [(2, 7, 16)] * 2
    assert model.pool(features.blocks[-1]).shape == (2, 16)  # (B, D)
    assert model(images).shape == (2, 5)  # (B, classes)


def test_a_block_alone_can_be_built_and_run():
    block = Block(tiny(), drop_path=0.0)
    assert block(torch.randn(2, 5, 8)).shape == (2, 5, 8)
