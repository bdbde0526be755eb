"""Multi-head self-attention: A_i = softmax(Q_i K_i^T / sqrt(D/h)), O_i = A_i V_i, concatenated and mixed by W_O."""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitrail.model.config import ViTConfig
from vitrail.model.efficient.window_attention import Windows, attend_in_windows
from vitrail.model.noise import Dropout, drop, place_of
from vitrail.model.positions import RelativeBias, rotate
from vitrail.model.precision import computes_bf16, without_autocast

QUERY_ROWS = 256  # attention rows computed at a time: the (M, M) map of a large image is never held as a whole
BY_MATMUL_TOKENS = 264  # the longest sequence that trains by plain matmul: 256 px in patches of 16, and some registers
WEIGHTS = place_of("attention weights")
CPU_COMPUTES_BF16 = computes_bf16("cpu")  # asked here, once: torch.compile cannot trace the question


def attend(
    q: Tensor, k: Tensor, v: Tensor, dropout: float = 0.0, training: bool = False, bias: Tensor | None = None
) -> Tensor:
    """softmax(Q K^T / sqrt(d)) V for q (B, heads, queries, d), k and v (B, heads, tokens, d), by the fastest equal way.

    bias: added to the scores before the softmax; any shape that broadcasts to (B, heads, queries, tokens).

    Fused everywhere, but where weights are dropped, which it would do by torch's generator (`noise.py`), and for half
    precision on a CPU:
    - The CPU computes in bfloat16: in training plain matmul wins, since fused attention's backward pass is slow there.
      Forward and backward, batch 32, 3 heads of 64, on one core (AMD EPYC, Zen 5, torch 2.13): 7.8 ms against 29 ms for
      101 tokens, 27 against 52 for 197, 43 against 75 for 257, 106 against 145 for 401. Beyond, its memory is not worth
      it. Without gradients it is faster too, but fused attention does not round its scores to bfloat16.
    - The CPU emulates bfloat16: both ways crawl, float32 does not. 65 tokens, 3 heads of 64, batch 256, forward and
      backward (AMD EPYC Zen 3, 2 cores, torch 2.13): 574 ms by bfloat16 matmul, 229 ms fused, 57 ms fused in float32.
    In float32 on that CPU fused won at every length tried, 17 to 257 tokens: 1.1 to 2 times in training, 1.1 to 3
    without.
    """
    if training and dropout:
        return attend_by_matmul(q, k, v, dropout, bias)
    if q.device.type == "cpu" and q.dtype in (torch.bfloat16, torch.float16):
        if not CPU_COMPUTES_BF16:
            with torch.autocast("cpu", enabled=False):
                exact = None if bias is None else bias.float()
                heads = F.scaled_dot_product_attention(q.float(), k.float(), v.float(), attn_mask=exact)
                return heads.to(q.dtype)
        if training and k.shape[-2] <= BY_MATMUL_TOKENS:
            return attend_by_matmul(q, k, v, 0.0, bias)
    bias = None if bias is None else bias.to(q.dtype)
    return F.scaled_dot_product_attention(q, k, v, attn_mask=bias)


def attend_by_matmul(q: Tensor, k: Tensor, v: Tensor, dropout: float, bias: Tensor | None = None) -> Tensor:
    """q (B, heads, Q, d), k and v (B, heads, M, d) -> (B, heads, Q, d), by two matrix products."""
    scores = (q * q.shape[-1] ** -0.5) @ k.transpose(-2, -1)  # (B, heads, queries, tokens)
    scores = scores if bias is None else scores + bias
    weights = scores.softmax(dim=-1)
    if dropout:
        weights = drop(weights, dropout, WEIGHTS, weights.dim())
    return weights.to(v.dtype) @ v  # (B, heads, queries, d)


def attention_weights(q: Tensor, k: Tensor, bias: Tensor | None = None) -> Tensor:
    """softmax(Q K^T / sqrt(d)) of q (B, heads, Q, d) and k (B, heads, M, d), in float32: (B, heads, Q, M).
    bias: added to the scores.

    Only for looking inside: the network itself runs fused attention, which never holds these weights."""
    with without_autocast(q.device):  # which would round the product to bfloat16 again
        scores = q.float() * q.shape[-1] ** -0.5 @ k.float().transpose(-2, -1)
        return (scores if bias is None else scores + bias.float()).softmax(dim=-1)


class AttentionGroup(NamedTuple):
    """Some tokens and all that they attend to: every token, or those of their window."""

    queries: Tensor  # (R,), token numbers
    keys: Tensor  # (K,), token numbers; other tokens get nothing of these queries
    weights: Tensor  # (B, heads, R, K), float32


class SelfAttention(nn.Module):
    """(B, M, D) -> (B, M, D)."""

    def __init__(self, config: ViTConfig) -> None:
        super().__init__()
        self.heads, self.head_dim, self.width = config.heads, config.head_dim, config.width
        self.qkv = nn.Linear(config.width, 3 * config.width, bias=config.qkv_bias)
        self.q_norm = nn.LayerNorm(config.head_dim, eps=config.norm_eps) if config.qk_norm else None
        self.k_norm = nn.LayerNorm(config.head_dim, eps=config.norm_eps) if config.qk_norm else None
        self.relative_bias = RelativeBias(config) if config.relative_bias else None
        self.norm = nn.LayerNorm(config.width, eps=config.norm_eps) if config.attention_norm else None
        self.out = nn.Linear(config.width, config.width)
        self.attention_dropout = config.attention_dropout
        self.dropout = Dropout(config.dropout, "attention")

    def project(self, x: Tensor, rope: Tensor | None, queries: int | None) -> tuple[Tensor, Tensor, Tensor]:
        """Q of the first `queries` tokens (None: all), K and V of all: (B, heads, M, d) each."""
        if queries is None:
            q, k, v = self.split(self.qkv(x), 3)
        else:
            bias = (None, None) if self.qkv.bias is None else self.qkv.bias.split([self.width, 2 * self.width])
            weight = self.qkv.weight.split([self.width, 2 * self.width])
            (q,) = self.split(F.linear(x[:, :queries], weight[0], bias[0]), 1)
            k, v = self.split(F.linear(x, weight[1], bias[1]), 2)
        if self.q_norm is not None and self.k_norm is not None:
            q, k = self.q_norm(q), self.k_norm(k)
        if rope is not None:
            q = rotate(q, rope) if queries is None else q  # the first tokens are prefix tokens, which are not turned
            k = rotate(k, rope)
        return q, k, v

    def split(self, x: Tensor, parts: int) -> tuple[Tensor, ...]:
        """(B, M, parts D) -> parts times (B, heads, M, d)."""
        x = x.reshape(*x.shape[:2], parts, self.heads, self.head_dim)
        return x.permute(2, 0, 3, 1, 4).unbind(0)

    def forward(
        self,
        x: Tensor,
        rope: Tensor | None = None,
        queries: int | None = None,
        windows: Windows | None = None,
        bias: Tensor | None = None,
    ) -> Tensor:
        """(B, M, D) -> (B, M, D), or (B, queries, D) where only the first so many tokens ask. Those are prefix tokens,
        which look at all windows. bias: (heads, M, M), added to the scores; windows have none."""
        own_bias = None if bias is None else bias[None, :, :queries]
        return self.mix(*self.project(x, rope, queries), windows if queries is None else None, own_bias)

    def mix(
        self, q: Tensor, k: Tensor, v: Tensor, windows: Windows | None = None, bias: Tensor | None = None
    ) -> Tensor:
        """What `project` gave -> (B, queries, D). bias: as for `attend`; windows have none."""
        own_attend = partial(attend, dropout=self.attention_dropout, training=self.training)
        if windows is not None:
            own_attend = partial(attend_in_windows, windows=windows, attend=own_attend)
        heads = own_attend(q, k, v) if bias is None else own_attend(q, k, v, bias=bias)  # (B, heads, M, d)
        return self.mix_heads(heads.transpose(1, 2).flatten(2))

    def mix_heads(self, concatenated: Tensor) -> Tensor:
        """The heads' sums, side by side -> what the block adds: (B, M, D) -> (B, M, D)."""
        return self.dropout(self.out(concatenated if self.norm is None else self.norm(concatenated)))
