"""Multi-head self-attention inside windows, with a bias for where two tokens stand to one another.

Version 1: A = softmax(Q K^T / sqrt(d) + bias). Version 2: the cosine of Q and K instead of their product, times a
learned scale a head.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitrail.model.attention import AttentionGroup, attend, attention_weights
from vitrail.model.noise import Dropout
from vitrail.model.swin.relative_bias import BiasTable, LogSpacedBias
from vitrail.model.swin.shifted_windows import Windows
from vitrail.model.swin.swin_config import SwinConfig

LARGEST_SCALE = math.log(100.0)  # of cosines, version 2


class WindowAttention(nn.Module):
    """(B, N, D) -> (B, N, D): each token attends to those of its own window."""

    def __init__(self, config: SwinConfig, stage: int) -> None:
        super().__init__()
        assert config.pretrained_windows is not None
        width, self.heads = config.stage_width(stage), config.heads[stage]
        cosine = config.version == "v2"
        self.qkv = nn.Linear(width, 3 * width, bias=config.qkv_bias and not cosine)
        # keys have no bias in version 2, so that of queries and values stands apart
        self.q_bias = nn.Parameter(torch.empty(width)) if config.qkv_bias and cosine else None
        self.v_bias = nn.Parameter(torch.empty(width)) if config.qkv_bias and cosine else None
        self.logit_scale = nn.Parameter(torch.empty(self.heads, 1, 1)) if cosine else None
        self.positions: BiasTable | LogSpacedBias
        if cosine:
            self.positions = LogSpacedBias(config.pretrained_windows[stage], self.heads)
        else:
            self.positions = BiasTable(config.stage_window(stage), self.heads)
        self.out = nn.Linear(width, width)
        self.attention_dropout = config.attention_dropout
        self.dropout = Dropout(config.dropout, "attention")

    def forward(self, x: Tensor, windows: Windows) -> Tensor:
        """(B, N, D) -> (B, N, D)."""
        qkv = windows.partition(self.project(x))  # (B, windows, M, 3 D)
        bias = self.qkv_bias()
        if bias is not None and windows.padded != windows.grid:  # padding goes into attention as 0, comes out as bias
            is_padding = windows.token_numbers(x.device) == x.shape[1]  # (windows, M)
            qkv = qkv + is_padding[..., None] * bias.to(qkv.dtype)
        q, k, v = self.split(qkv)  # (B, windows, heads, M, d) each
        heads = self.attend_in_windows(q, k, v, self.score_bias(windows))
        heads = windows.reverse(heads.transpose(2, 3).flatten(3))  # (B, N, D)
        return self.dropout(self.out(heads))

    def project(self, x: Tensor) -> Tensor:
        """(B, N, D) -> queries, keys and values side by side, (B, N, 3 D)."""
        return F.linear(x, self.qkv.weight, self.qkv_bias())

    def qkv_bias(self) -> Tensor | None:
        """(3 D,), zeros for the keys in version 2."""
        if self.q_bias is None or self.v_bias is None:
            return self.qkv.bias
        return torch.cat([self.q_bias, torch.zeros_like(self.q_bias), self.v_bias])

    def split(self, qkv: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """(..., M, 3 D) -> q, k, v as attention takes them, (..., heads, M, d) each."""
        q, k, v = qkv.unflatten(-1, (3, self.heads, -1)).transpose(-4, -3).transpose(-3, -2).unbind(-4)
        if self.logit_scale is not None:
            scale = self.logit_scale.clamp(max=LARGEST_SCALE).exp()
            # attention divides by sqrt(d), which cosines do not want
            q = F.normalize(q, dim=-1) * (scale * q.shape[-1] ** 0.5).to(q.dtype)
            k = F.normalize(k, dim=-1)
        return q, k, v

    def score_bias(self, windows: Windows) -> Tensor:
        """What is added to the scores: (1, heads, M, M), or (windows, heads, M, M) where windows are shifted."""
        positions = self.positions(windows.size)[None]
        mask = windows.mask(positions.device)
        return positions if mask is None else positions + mask[:, None].to(positions.dtype)

    def attend_in_windows(self, q: Tensor, k: Tensor, v: Tensor, bias: Tensor) -> Tensor:
        """(B, windows, heads, M, d) each -> the same shape."""
        if bias.requires_grad and torch.is_grad_enabled():  # fused attention has no gradient for its bias
            return attend(q, k, v, self.attention_dropout, self.training, bias)
        batch, windows = q.shape[:2]  # not len(q): in torch.export that would fix the batch
        if len(bias) > 1:  # fused attention takes four dims: batch and windows become one
            bias = bias.expand(batch, *bias.shape).flatten(0, 1)
        q, k, v = (part.flatten(0, 1) for part in (q, k, v))
        return attend(q, k, v, self.attention_dropout, self.training, bias).unflatten(0, (batch, windows))

    def groups(self, q: Tensor, k: Tensor, queries: Tensor, windows: Windows) -> Iterator[AttentionGroup]:
        """Attention weights of the query tokens (R,), window by window, of q and k (B, heads, N, d). Padding is no
        token, but is attended to: what a row lacks to 1 it has."""
        count = q.shape[2]
        tokens = windows.token_numbers(q.device)  # (windows, M), N for padding
        k = torch.cat([k, self.padding_key(k)], dim=2)  # (B, heads, N + 1, d)
        is_query = torch.zeros(count + 1, dtype=torch.bool, device=q.device)
        is_query[queries] = True
        bias = self.score_bias(windows)
        for number, window in enumerate(tokens):
            asks, real = is_query[window], window < count  # (M,)
            if asks.any():
                own_bias = bias[number % len(bias)][:, asks]  # (heads, R, M)
                weights = attention_weights(q[:, :, window[asks]], k[:, :, window], own_bias)
                yield AttentionGroup(window[asks], window[real], weights[..., real])

    def padding_key(self, like: Tensor) -> Tensor:
        """The key of a padded token, (B, heads, 1, d): its input is 0."""
        bias = self.qkv_bias()
        if bias is None or self.logit_scale is not None:
            return torch.zeros_like(like[:, :, :1])
        key = bias.chunk(3)[1].unflatten(0, (self.heads, -1))  # (heads, d)
        return key[:, None].expand_as(like[:, :, :1]).to(like.dtype)

    @torch.no_grad()
    def initialise(self) -> None:
        """What linear layers do not have: biases of 0, a scale of 10, positions."""
        for bias in (self.q_bias, self.v_bias):
            if bias is not None:
                nn.init.zeros_(bias)
        if self.logit_scale is not None:
            nn.init.constant_(self.logit_scale, math.log(10.0))
        self.positions.initialise()
