"""The encoder block, pre-norm or post-norm, with its MLP, layer scale and drop path. The shape is kept: (B, M, D)."""

from __future__ import annotations

from collections.abc import Iterator

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitrail.model.attention import QUERY_ROWS, AttentionGroup, SelfAttention, attention_weights
from vitrail.model.config import ViTConfig
from vitrail.model.positions import Grid


def activate(x: Tensor, activation: str) -> Tensor:
    """The MLP's nonlinearity, shape kept; swiglu halves the last dim: one half gates the other."""
    if activation == "swiglu":
        gate, value = x.chunk(2, dim=-1)
        return F.silu(gate) * value
    if activation == "quick_gelu":  # OpenAI's CLIP
        return x * torch.sigmoid(1.702 * x)
    return F.gelu(x, approximate="tanh" if activation == "gelu_tanh" else "none")


class MLP(nn.Module):
    """D -> mlp_width -> D. SwiGLU has two maps up, packed in one: the gate first, then the value."""

    def __init__(self, width: int, mlp_width: int, activation: str, dropout: float) -> None:
        super().__init__()
        self.activation = activation
        self.up = nn.Linear(width, mlp_width * (2 if activation == "swiglu" else 1))
        self.down = nn.Linear(mlp_width, width)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        """(B, M, D) -> (B, M, D)."""
        x = self.dropout(activate(self.up(x), self.activation))  # (B, M, mlp_width)
        return self.dropout(self.down(x))  # (B, M, D)


class LayerScaleDropPath(nn.Module):
    """What a residual branch does to its result before it is added: layer scale, then drop path."""

    def __init__(self, drop_path: float, scaled_width: int | None = None) -> None:
        super().__init__()
        self.drop_path = drop_path
        self.scale = nn.Parameter(torch.empty(scaled_width)) if scaled_width is not None else None

    def forward(self, x: Tensor) -> Tensor:
        """(B, M, D) -> (B, M, D)."""
        if self.scale is not None:
            x = x * self.scale
        if self.training and self.drop_path > 0:  # a whole image's branch is dropped, the others are scaled up
            keep = 1 - self.drop_path
            x = x * x.new_empty(x.shape[0], 1, 1).bernoulli_(keep).div_(keep)
        return x


class Block(nn.Module):
    """Pre-norm: x = x + MSA(LN(x)), x = x + MLP(LN(x)). Post-norm: x = LN(x + MSA(x)), x = LN(x + MLP(x))."""

    def __init__(self, config: ViTConfig, drop_path: float) -> None:
        super().__init__()
        assert config.mlp_width is not None
        scaled_width = None if config.layer_scale is None else config.width
        self.pre = config.norm == "pre"
        self.norm1 = nn.LayerNorm(config.width, eps=config.norm_eps)
        self.attention = SelfAttention(config)
        self.branch1 = LayerScaleDropPath(drop_path, scaled_width)
        self.norm2 = nn.LayerNorm(config.width, eps=config.norm_eps)
        self.mlp = MLP(config.width, config.mlp_width, config.activation, config.dropout)
        self.branch2 = LayerScaleDropPath(drop_path, scaled_width)

    def attention_input(self, x: Tensor) -> Tensor:
        """What attention takes of the block's input: pre-norm blocks normalise first."""
        return self.norm1(x) if self.pre else x

    def qkv(self, x: Tensor, rope: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
        """Q, K and V of all tokens as attention takes them, from the block's input (B, M, D): (B, heads, M, d) each."""
        return self.attention.project(self.attention_input(x), rope, None)

    def attention_rows(self, q: Tensor, k: Tensor, queries: Tensor, grid: Grid) -> Tensor:
        """Attention weights of the query tokens (R,) to all tokens, from what `qkv` gave: (B, heads, R, M)."""
        return attention_weights(q[:, :, queries], k)

    def attention_groups(self, q: Tensor, k: Tensor, queries: Tensor, grid: Grid) -> Iterator[AttentionGroup]:
        """The same for many queries, some at a time, without the zeros of tokens that none of them can see."""
        keys = torch.arange(k.shape[2], device=k.device)
        for part in queries.split(QUERY_ROWS):
            yield AttentionGroup(part, keys, self.attention_rows(q, k, part, grid))

    def meeting(self, grid: Grid) -> Tensor | None:
        """(N,), of the patches: those with the same number attend to one another. None: all to all."""
        return None

    def forward(self, x: Tensor, rope: Tensor | None = None, queries: int | None = None) -> Tensor:
        """`queries`: only the first so many tokens go on (all are still attended to), when nobody reads the others."""
        if self.pre:
            x = x[:, :queries] + self.branch1(self.attention(self.norm1(x), rope, queries))
            return x + self.branch2(self.mlp(self.norm2(x)))
        x = self.norm1(x[:, :queries] + self.branch1(self.attention(x, rope, queries)))
        return self.norm2(x + self.branch2(self.mlp(x)))
