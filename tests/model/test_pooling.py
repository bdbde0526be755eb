"""Pooling: attention pooling against torch's own attention, and the others against their definition."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from vitrail.model.pooling import AttentionPool, Pool
from vitrail.model.presets import preset
from vitrail.model.vit import ViT


def tiny(**changes):
    return preset("mu/4", **{"image_size": 16, "classes": 5, **changes})


@pytest.mark.parametrize("changes", [{}, {"activation": "gelu_tanh", "heads": 4}, {"activation": "swiglu"}], ids=str)
def test_attention_pooling_is_torchs_attention_with_a_learned_query_then_an_mlp(lively, changes):
    pool = lively(tiny(pool="attention", **changes)).pool.attention
    theirs = nn.MultiheadAttention(32, pool.heads, batch_first=True)
    with torch.no_grad():
        theirs.in_proj_weight.copy_(torch.cat([pool.q.weight, pool.kv.weight]))
        theirs.in_proj_bias.copy_(torch.cat([pool.q.bias, pool.kv.bias]))
    theirs.out_proj.load_state_dict(pool.out.state_dict())
    x = torch.randn(3, 17, 32)
    attended, _ = theirs(pool.query.expand(3, 1, 32), x, x, need_weights=False)
    expected = attended + pool.mlp(pool.norm(attended))
    torch.testing.assert_close(pool(x), expected[:, 0])


def test_the_query_of_attention_pooling_is_learned_and_starts_small():
    torch.manual_seed(0)
    query = ViT(tiny(pool="attention", width=512, mlp_width=4)).pool.attention.query
    assert query.shape == (1, 512)
    assert query.requires_grad
    assert query.std().item() == pytest.approx(0.02, rel=0.15)


@pytest.mark.parametrize("registers", [0, 2])
def test_each_pool_takes_its_own_tokens(registers):
    x = torch.randn(2, 1 + registers + 16, 32)
    cls, patches = x[:, 0], x[:, 1 + registers :]
    pooled = {kind: Pool(tiny(pool=kind, registers=registers))(x) for kind in ("cls", "mean", "cls_mean", "none")}
    assert torch.equal(pooled["cls"], cls)
    torch.testing.assert_close(pooled["mean"], patches.mean(dim=1))
    torch.testing.assert_close(pooled["cls_mean"], torch.cat([cls, patches.mean(dim=1)], dim=1))
    assert torch.equal(pooled["none"], patches)


def test_cls_mean_feeds_a_head_of_twice_the_width(lively):
    model = lively(tiny(pool="cls_mean", depth=2))
    assert model.head.out.weight.shape == (5, 64)
    images = torch.randn(2, 3, 16, 16)
    features = model.features(images)
    both = torch.cat([features.cls, features.patches.mean(dim=1)], dim=1)
    torch.testing.assert_close(model(images), model.head.out(both))


def test_cls_mean_under_a_pooled_norm_is_normed_as_one_vector(lively):
    model = lively(tiny(pool="cls_mean", final_norm="pooled"))
    assert model.norm.normalized_shape == (64,)
    images = torch.randn(2, 3, 16, 16)
    features = model.features(images)
    both = torch.cat([features.cls, features.patches.mean(dim=1)], dim=1)
    torch.testing.assert_close(model(images), model.head.out(model.norm(both)))


def test_only_attention_pooling_has_weights():
    for kind in ("cls", "mean", "cls_mean", "none"):
        assert list(Pool(tiny(pool=kind)).parameters()) == []
    assert isinstance(Pool(tiny(pool="attention")).attention, AttentionPool)
