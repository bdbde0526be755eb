"""A block of Swin: window attention, then an MLP. And what stands between two stages: patch merging."""

from __future__ import annotations

from collections.abc import Iterator

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitrail.model.attention import AttentionGroup
from vitrail.model.block import MLP, LayerScaleDropPath
from vitrail.model.positions import Grid
from vitrail.model.swin.shifted_windows import Windows, windows_of
from vitrail.model.swin.swin_attention import WindowAttention
from vitrail.model.swin.swin_config import SwinConfig


class SwinBlock(nn.Module):
    """v1: x = x + MSA(LN(x)), x = x + MLP(LN(x)). v2: x = x + LN(MSA(x)), x = x + LN(MLP(x)).

    Every other block of a stage shifts its windows.
    """

    def __init__(self, config: SwinConfig, stage: int, shifted: bool, drop_path: float) -> None:
        super().__init__()
        width = config.stage_width(stage)
        self.pre = config.version == "v1"
        self.shifted = shifted
        self.window_size, self.pad_before_shift = config.window_size, config.padding == "before_shift"
        self.norm1 = nn.LayerNorm(width, eps=config.norm_eps)
        self.attention = WindowAttention(config, stage)
        self.branch1 = LayerScaleDropPath(drop_path, "attention branch")
        self.norm2 = nn.LayerNorm(width, eps=config.norm_eps)
        self.mlp = MLP(width, config.mlp_width(stage), config.activation, config.dropout)
        self.branch2 = LayerScaleDropPath(drop_path, "mlp branch")

    def windows(self, grid: Grid) -> Windows:
        """How this block cuts a grid into windows."""
        return windows_of(grid, self.window_size, self.shifted, self.pad_before_shift)

    def attention_input(self, x: Tensor) -> Tensor:
        """What attention takes of the block's input."""
        return self.norm1(x) if self.pre else x

    def qkv(self, x: Tensor, rope: Tensor | None = None) -> tuple[Tensor, Tensor, Tensor]:
        """Q, K and V of all tokens as attention takes them, from the block's input (B, N, D): (B, heads, N, d) each."""
        return self.attention.split(self.attention.project(self.attention_input(x)))

    def attention_rows(self, q: Tensor, k: Tensor, queries: Tensor, grid: Grid) -> Tensor:
        """Attention weights of the query tokens (R,) to all tokens, 0 outside of their windows: (B, heads, R, N)."""
        rows = q.new_zeros(*q.shape[:2], len(queries), q.shape[2], dtype=torch.float32)
        row_of = torch.zeros(q.shape[2], dtype=torch.long, device=q.device)
        row_of[queries] = torch.arange(len(queries), device=q.device)
        for group in self.attention_groups(q, k, queries, grid):
            rows[:, :, row_of[group.queries][:, None], group.keys] = group.weights
        return rows

    def attention_groups(self, q: Tensor, k: Tensor, queries: Tensor, grid: Grid) -> Iterator[AttentionGroup]:
        """The same window by window, without the zeros. What a row lacks to 1 the padding of its window has."""
        return self.attention.groups(q, k, queries, self.windows(grid))

    def meeting(self, grid: Grid) -> Tensor | None:
        """(N,): tokens with the same number attend to one another. None: all to all."""
        windows = self.windows(grid)
        return None if windows.size == grid else windows.meeting(self.norm1.weight.device)

    def forward(self, x: Tensor, grid: Grid) -> Tensor:
        """(B, N, D) -> (B, N, D)."""
        windows = self.windows(grid)
        if self.pre:
            x = x + self.branch1(self.attention(self.norm1(x), windows))
            return x + self.branch2(self.mlp(self.norm2(x)))
        x = x + self.branch1(self.norm1(self.attention(x, windows)))
        return x + self.branch2(self.norm2(self.mlp(x)))


class PatchMerging(nn.Module):
    """2 x 2 tokens become one of twice the width. v1 norms the four side by side, v2 what the linear map gives."""

    def __init__(self, config: SwinConfig, stage: int) -> None:
        super().__init__()
        width = config.stage_width(stage)
        self.pre = config.version == "v1"
        self.norm = nn.LayerNorm(4 * width if self.pre else 2 * width, eps=config.norm_eps)
        self.reduction = nn.Linear(4 * width, 2 * width, bias=False)

    def forward(self, x: Tensor, grid: Grid) -> tuple[Tensor, Grid]:
        """(B, h w, D) -> (B, h/2 w/2, 2 D) and the new grid. An odd grid is padded with zeros."""
        x = x.unflatten(1, grid)
        x = F.pad(x, (0, 0, 0, grid[1] % 2, 0, grid[0] % 2)) if grid[0] % 2 or grid[1] % 2 else x
        height, width = x.shape[1] // 2, x.shape[2] // 2
        x = x.unflatten(2, (width, 2)).unflatten(1, (height, 2))  # (B, h/2, 2, w/2, 2, D)
        x = x.permute(0, 1, 3, 4, 2, 5).flatten(3).flatten(1, 2)  # column first: 2 on the left, 2 on the right
        return self.reduction(self.norm(x)) if self.pre else self.norm(self.reduction(x)), (height, width)
