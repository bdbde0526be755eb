"""The encoder block, pre-norm or post-norm, with its MLP, layer scale and drop path. The shape is kept: (B, M, D)."""

from __future__ import annotations

from collections.abc import Iterator

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitrail.model.attention import QUERY_ROWS, AttentionGroup, SelfAttention, attention_weights
from vitrail.model.config import ViTConfig
from vitrail.model.efficient.token_merging import TokenMerging, attention_bias
from vitrail.model.efficient.window_attention import Windows, window_bias
from vitrail.model.noise import Dropout, drop, place_of
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
    """D -> mlp_width -> D. SwiGLU has two maps up, packed in one: the gate first, then the value.

    norm_eps: EVA-02 normalises what the second map takes; None: it does not."""

    def __init__(
        self, width: int, mlp_width: int, activation: str, dropout: float, norm_eps: float | None = None
    ) -> None:
        super().__init__()
        self.activation = activation
        self.up = nn.Linear(width, mlp_width * (2 if activation == "swiglu" else 1))
        self.norm = nn.LayerNorm(mlp_width, eps=norm_eps) if norm_eps is not None else None
        self.down = nn.Linear(mlp_width, width)
        self.hidden_dropout = Dropout(dropout, "mlp hidden")
        self.dropout = Dropout(dropout, "mlp")

    def forward(self, x: Tensor) -> Tensor:
        """(B, M, D) -> (B, M, D)."""
        return self.dropout(self.down(self.hidden(x)))  # (B, M, D)

    def hidden(self, x: Tensor) -> Tensor:
        """What the second map takes: (B, M, D) -> (B, M, mlp_width)."""
        x = self.hidden_dropout(activate(self.up(x), self.activation))
        return x if self.norm is None else self.norm(x)


class LayerScaleDropPath(nn.Module):
    """What a residual branch does to its result before it is added: layer scale, then drop path."""

    def __init__(self, drop_path: float, name: str, scaled_width: int | None = None) -> None:
        super().__init__()
        self.drop_path, self.place = drop_path, place_of(name)
        self.scale = nn.Parameter(torch.empty(scaled_width)) if scaled_width is not None else None

    def forward(self, x: Tensor) -> Tensor:
        """(B, M, D) -> (B, M, D)."""
        if self.scale is not None:
            x = x * self.scale
        if self.training and self.drop_path > 0:  # a whole image's branch is dropped, the others are scaled up
            x = drop(x, self.drop_path, self.place, 1)
        return x


class Block(nn.Module):
    """Pre-norm: x = x + MSA(LN(x)), x = x + MLP(LN(x)). Post-norm: x = LN(x + MSA(x)), x = LN(x + MLP(x))."""

    def __init__(self, config: ViTConfig, drop_path: float, window: int = 0) -> None:
        super().__init__()
        assert config.mlp_width is not None
        scaled_width = None if config.layer_scale is None else config.width
        self.window, self.prefix = window, config.prefix  # window: patches a side; 0: full attention
        self.pre = config.norm == "pre"
        self.norm1 = nn.LayerNorm(config.width, eps=config.norm_eps)
        self.attention = SelfAttention(config)
        self.branch1 = LayerScaleDropPath(drop_path, "attention branch", scaled_width)
        self.norm2 = nn.LayerNorm(config.width, eps=config.norm_eps)
        mlp_norm = config.norm_eps if config.mlp_norm else None
        self.mlp = MLP(config.width, config.mlp_width, config.activation, config.dropout, mlp_norm)
        self.branch2 = LayerScaleDropPath(drop_path, "mlp branch", scaled_width)

    def attention_input(self, x: Tensor) -> Tensor:
        """What attention takes of the block's input: pre-norm blocks normalise first."""
        return self.norm1(x) if self.pre else x

    def qkv(self, x: Tensor, rope: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
        """Q, K and V of all tokens as attention takes them, from the block's input (B, M, D): (B, heads, M, d) each."""
        return self.attention.project(self.attention_input(x), rope, None)

    def attention_bias(self, grid: Grid | None, kept: Tensor | None = None) -> Tensor | None:
        """What is added to attention's scores, (heads, M, M), or None. kept: the token numbers that are left."""
        if self.attention.relative_bias is None:
            return None
        assert grid is not None, "relative positions need the grid"
        bias = self.attention.relative_bias(grid)
        return bias if kept is None else bias.index_select(1, kept).index_select(2, kept)

    def attention_rows(self, q: Tensor, k: Tensor, queries: Tensor, grid: Grid) -> Tensor:
        """Attention weights of the query tokens (R,) to all tokens, from what `qkv` gave: (B, heads, R, M). Outside of
        a patch's window they are 0."""
        windows, bias = self.windows(grid), self.attention_bias(grid)
        own = None if bias is None else bias[:, queries]
        return attention_weights(q[:, :, queries], k, own if windows is None else window_bias(windows, queries))

    def attention_groups(self, q: Tensor, k: Tensor, queries: Tensor, grid: Grid) -> Iterator[AttentionGroup]:
        """The same for many queries, some at a time, without the zeros of tokens that none of them can see."""
        tokens, numbers = torch.arange(k.shape[2], device=k.device), self.meeting(grid)
        if numbers is None:
            for part in queries.split(QUERY_ROWS):
                yield AttentionGroup(part, tokens, self.attention_rows(q, k, part, grid))
            return
        home = torch.cat(
            [numbers.new_full((self.prefix,), -1), numbers.to(k.device)]
        )  # (M,), -1: sees all, seen by all
        for number in home[queries].unique():
            keys = tokens if number < 0 else tokens[(home == number) | (home < 0)]
            for part in queries[home[queries] == number].split(QUERY_ROWS):
                yield AttentionGroup(part, keys, attention_weights(q[:, :, part], k[:, :, keys]))

    def meeting(self, grid: Grid) -> Tensor | None:
        """(N,), of the patches: those with the same number attend to one another. None: all to all."""
        windows = self.windows(grid)
        return None if windows is None or windows.cover_all else windows.numbers(self.norm1.weight.device)

    def windows(self, grid: Grid | None) -> Windows | None:
        """How its attention cuts a grid into windows; None: it does not."""
        if not self.window:
            return None
        assert grid is not None, "a block with windows must know the grid"
        return Windows(self.window, self.prefix, grid)

    def forward(
        self,
        x: Tensor,
        rope: Tensor | None = None,
        queries: int | None = None,
        grid: Grid | None = None,
        kept: Tensor | None = None,
    ) -> Tensor:
        """`queries`: only the first so many tokens go on (all are still attended to), when nobody reads the others.
        `kept`: the token numbers that are left, where some patches were dropped for training."""
        windows, bias = self.windows(grid), self.attention_bias(grid, kept)
        attended = self.attention(self.attention_input(x), rope, queries, windows, bias)
        return self.add_mlp(self.add_attention(x[:, :queries], attended))

    def forward_merging(
        self, x: Tensor, merging: TokenMerging, r: int, queries: int | None = None
    ) -> tuple[Tensor, TokenMerging]:
        """The same, with r tokens fewer from attention on: (B, M, D) -> (B, M - r, D). See `token_merging.py`."""
        q, k, v = self.attention.project(self.attention_input(x), None, queries)
        attended = self.attention.mix(q, k, v, bias=attention_bias(merging.sizes))
        x = self.add_attention(x[:, :queries], attended)
        if queries is None:  # otherwise the patches end here
            x, merging = merging.merge(x, k, r)
        return self.add_mlp(x), merging

    def add_attention(self, x: Tensor, attended: Tensor) -> Tensor:
        """The first residual branch, (B, M, D)."""
        x = x + self.branch1(attended)
        return x if self.pre else self.norm1(x)

    def add_mlp(self, x: Tensor) -> Tensor:
        """The second residual branch, (B, M, D)."""
        if self.pre:
            return x + self.branch2(self.mlp(self.norm2(x)))
        return self.norm2(x + self.branch2(self.mlp(x)))
