"""Attention: all its ways give one answer, and its options do what they say."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from vitrail.model import attention as attention_file
from vitrail.model.attention import SelfAttention, attend, attend_by_matmul
from vitrail.model.positions import RotaryPositions
from vitrail.model.presets import preset


def tiny(**changes):
    return preset("mu/4", **{"image_size": 16, **changes})


def q_k_v(tokens=17, dtype=torch.float32):
    return tuple(torch.randn(3, 2, 2, tokens, 16).to(dtype))


# ---- the ways to attend


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("queries", [1, 5, 17])
def test_attention_by_matmul_equals_fused_attention(dtype, queries):
    q, k, v = q_k_v(dtype=dtype)
    q = q[:, :, :queries]
    torch.testing.assert_close(attend_by_matmul(q, k, v, 0.0), F.scaled_dot_product_attention(q, k, v))
    torch.testing.assert_close(attend(q, k, v), F.scaled_dot_product_attention(q, k, v))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("computes_bf16", [False, True])
@pytest.mark.parametrize("tokens", [17, 129])
def test_every_way_in_half_precision_is_close_to_single(monkeypatch, dtype, training, computes_bf16, tokens):
    monkeypatch.setattr(attention_file, "CPU_COMPUTES_BF16", computes_bf16)
    q, k, v = q_k_v(tokens, dtype)
    expected = F.scaled_dot_product_attention(q.float(), k.float(), v.float())
    found = attend(q, k, v, training=training)
    assert found.dtype == dtype
    torch.testing.assert_close(found.float(), expected, atol=2e-2, rtol=2e-2)


@pytest.mark.parametrize(
    ("computes_bf16", "training", "tokens", "by_matmul"),
    [(True, True, 264, True), (True, True, 265, False), (True, False, 17, False), (False, True, 17, False)],
)
def test_matmul_is_taken_where_it_was_measured_to_win(monkeypatch, computes_bf16, training, tokens, by_matmul):
    monkeypatch.setattr(attention_file, "CPU_COMPUTES_BF16", computes_bf16)
    called = []
    monkeypatch.setattr(attention_file, "attend_by_matmul", lambda q, k, v, dropout, bias: called.append(dropout) or v)
    attend(*q_k_v(tokens, torch.bfloat16), training=training)
    assert called == ([0.0] if by_matmul else [])


@pytest.mark.parametrize("computes_bf16", [False, True])
def test_gradients_in_half_precision_are_close_to_single(monkeypatch, computes_bf16):
    monkeypatch.setattr(attention_file, "CPU_COMPUTES_BF16", computes_bf16)
    halves = [x.requires_grad_() for x in q_k_v(dtype=torch.bfloat16)]
    singles = [x.detach().float().requires_grad_() for x in halves]
    attend(*halves, training=True).float().square().sum().backward()
    F.scaled_dot_product_attention(*singles).square().sum().backward()
    for half, single in zip(halves, singles, strict=True):
        torch.testing.assert_close(half.grad.float(), single.grad, atol=0.1, rtol=0.1)


@pytest.mark.parametrize(
    ("dtype", "computes_bf16"), [(torch.float32, False), (torch.bfloat16, True), (torch.bfloat16, False)]
)
def test_attention_dropout_happens_in_training_only_and_keeps_the_mean(monkeypatch, dtype, computes_bf16):
    monkeypatch.setattr(attention_file, "CPU_COMPUTES_BF16", computes_bf16)
    torch.manual_seed(0)
    q, k, v = torch.zeros(3, 500, 2, 16, 4, dtype=dtype)  # equal scores: every weight is 1 / 16
    v = v + 1
    assert torch.equal(attend(q, k, v, dropout=0.5), v)
    dropped = attend(q, k, v, dropout=0.5, training=True).float()
    assert dropped.std() > 0.1
    assert dropped.mean().item() == pytest.approx(1.0, abs=0.02)


# ---- the module


@pytest.mark.parametrize("qkv_bias", [True, False])
def test_self_attention_is_torchs_own_with_the_same_weights(lively, qkv_bias):
    ours = lively(tiny(qkv_bias=qkv_bias)).blocks[0].attention
    assert (ours.qkv.bias is not None) == qkv_bias
    theirs = nn.MultiheadAttention(32, 2, batch_first=True)
    with torch.no_grad():
        theirs.in_proj_weight.copy_(ours.qkv.weight)
        theirs.in_proj_bias.copy_(ours.qkv.bias if qkv_bias else torch.zeros(96))
    theirs.out_proj.load_state_dict(ours.out.state_dict())
    x = torch.randn(2, 17, 32)
    torch.testing.assert_close(ours(x), theirs(x, x, x, need_weights=False)[0])


@pytest.mark.parametrize("changes", [{}, {"qkv_bias": False}, {"qk_norm": True}, {"positions": "rotary"}], ids=str)
@pytest.mark.parametrize("queries", [1, 2, 3])
def test_the_first_queries_alone_get_the_answers_they_get_among_all(lively, changes, queries):
    attention = lively(tiny(**changes)).blocks[0].attention
    rope = RotaryPositions(tiny(**changes))((4, 4)) if "positions" in changes else None
    x = torch.randn(2, 3 + 16, 32)
    torch.testing.assert_close(attention(x, rope, queries), attention(x, rope)[:, :queries])


def test_qk_norm_is_a_norm_of_each_heads_queries_and_keys(lively):
    attention = lively(tiny(qk_norm=True)).blocks[0].attention
    x = torch.randn(2, 17, 32)
    q, k, v = (part.reshape(2, 17, 2, 16).transpose(1, 2) for part in attention.qkv(x).split(32, dim=-1))
    q = F.layer_norm(q, (16,), attention.q_norm.weight, attention.q_norm.bias, eps=1e-6)
    k = F.layer_norm(k, (16,), attention.k_norm.weight, attention.k_norm.bias, eps=1e-6)
    mixed = ((q @ k.transpose(-2, -1) / 4).softmax(-1) @ v).transpose(1, 2).reshape(2, 17, 32)
    torch.testing.assert_close(attention(x), attention.out(mixed))
    assert SelfAttention(tiny()).q_norm is None


def test_rotary_turns_queries_and_keys_and_leaves_values(lively):
    attention = lively(tiny(positions="rotary")).blocks[0].attention
    rope = RotaryPositions(tiny(positions="rotary"))((4, 4))
    x = torch.randn(2, 17, 32)
    plain, turned = attention.project(x, None, None), attention.project(x, rope, None)
    assert (plain[0] - turned[0]).abs().max() > 0.1
    assert (plain[1] - turned[1]).abs().max() > 0.1
    assert torch.equal(plain[2], turned[2])
    assert torch.equal(plain[0][:, :, 0], turned[0][:, :, 0])  # [CLS]


def test_output_dropout_happens_in_training_only():
    torch.manual_seed(0)
    attention = SelfAttention(tiny(dropout=0.5))
    x = torch.randn(20, 17, 32)
    assert (attention.train()(x) == 0).float().mean().item() == pytest.approx(0.5, abs=0.05)
    assert (attention.eval()(x) == 0).sum() == 0
