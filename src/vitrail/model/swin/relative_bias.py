"""Where a token stands as seen from another in its window: a number a head that is added to their score.

Version 1 learns a table of them; version 2 an MLP that computes them, so that windows can grow.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitrail.model.positions import Grid, known
from vitrail.model.precision import without_autocast
from vitrail.model.swin.swin_config import HIDDEN

REACH = 8.0  # the MLP's coordinates of the farthest neighbour, before the logarithm
HIGHEST = 16.0  # biases of version 2 lie between 0 and this


def relative_index(window: Grid, device: torch.device) -> Tensor:
    """(M, M): for each pair of tokens of a window the row of the table of its offset, (2h-1)(2w-1) of them."""
    rows, columns = (torch.arange(side, device=device) for side in window)
    down = rows[:, None] - rows + window[0] - 1  # (h, h), from 0
    across = columns[:, None] - columns + window[1] - 1  # (w, w)
    index = down[:, None, :, None] * (2 * window[1] - 1) + across[None, :, None, :]  # (h, w, h, w)
    return index.flatten(2).flatten(0, 1)


class BiasTable(nn.Module):
    """A learned number for each offset and head. Another window than the native one resamples the table."""

    def __init__(self, window: Grid, heads: int) -> None:
        super().__init__()
        self.window = window
        self.table = nn.Parameter(torch.empty((2 * window[0] - 1) * (2 * window[1] - 1), heads))

    def forward(self, window: Grid) -> Tensor:
        """(heads, M, M) for a window."""
        table = resample_table(self.table, self.window, window)
        return table[relative_index(window, table.device)].permute(2, 0, 1)

    @torch.no_grad()
    def initialise(self) -> None:
        """Small numbers around 0."""
        nn.init.trunc_normal_(self.table, std=0.02, a=-0.04, b=0.04)


class LogSpacedBias(nn.Module):
    """An MLP of the offset in logarithmic coordinates, in which a window twice as large lies hardly farther out."""

    def __init__(self, pretrained_window: int, heads: int) -> None:
        super().__init__()
        self.pretrained_window = pretrained_window
        self.up = nn.Linear(2, HIDDEN)
        self.down = nn.Linear(HIDDEN, heads, bias=False)

    def forward(self, window: Grid) -> Tensor:
        """(heads, M, M) for a window, between 0 and HIGHEST."""
        weight = self.up.weight
        with without_autocast(weight.device):
            offsets = log_coordinates(window, self.pretrained_window, weight.device).to(weight.dtype)
            table = self.down(F.relu(self.up(offsets)))  # ((2h-1)(2w-1), heads)
        biases = HIGHEST * torch.sigmoid(table)
        return biases[relative_index(window, weight.device)].permute(2, 0, 1)

    def initialise(self) -> None:
        """As all linear layers are."""


def log_coordinates(window: Grid, pretrained_window: int, device: torch.device) -> Tensor:
    """((2h-1)(2w-1), 2): sign(o) log2(1 + 8 |o|) / 3 of each offset o, as a share of the window it was trained with."""
    axes = []
    for side in window:
        offsets = torch.arange(1 - side, side, dtype=torch.float32, device=device)
        share = REACH * offsets / max(1, (pretrained_window or side) - 1)
        axes.append(share.sign() * torch.log2(share.abs() + 1) / math.log2(REACH))
    down, across = axes
    return torch.stack([down[:, None].expand(-1, len(across)), across.expand(len(down), -1)], dim=-1).flatten(0, 1)


def resample_table(table: Tensor, old: Grid, new: Grid) -> Tensor:
    """A bias table ((2h-1)(2w-1), heads) for another window, by timm's rule: offsets of the old table are spread so
    that they reach as far as the new window, the farther out the wider (BEiT's geometric spacing), linear between.
    (Where one side stays, timm still spreads it, by 1 % a step; so does this.)"""
    if known(new) and new == old:
        return table
    sides = [2 * side - 1 for side in old]
    down, across = (interpolation(2 * a - 1, 2 * b - 1, table) for a, b in zip(old, new, strict=True))
    square = table.to(down.dtype).unflatten(0, sides)  # (2h-1, 2w-1, heads)
    square = torch.einsum("yh,xw,hwk->yxk", down, across, square)
    return square.flatten(0, 1).to(table.dtype)


def interpolation(old: int, new: int, like: Tensor) -> Tensor:
    """(new, old): the weights of the old offsets along one axis in each of the new ones."""
    dtype = torch.promote_types(like.dtype, torch.float32)
    places = torch.tensor(spread_offsets(old, new), dtype=dtype, device=like.device)
    reach = new // 2
    wanted = torch.arange(-reach, reach + 1, dtype=dtype, device=like.device)
    right = torch.bucketize(wanted, places).clamp(max=old - 1)
    left = (right - 1).clamp(min=0)
    to_left, to_right = (wanted - places[left]).clamp(min=0), (places[right] - wanted).clamp(min=0)
    both = to_left + to_right
    share = torch.where(both > 0, to_left / both.clamp(min=1e-12), 0.5)[:, None]  # of the right one
    one_hot = torch.eye(old, dtype=dtype, device=like.device)
    return (1 - share) * one_hot[left] + share * one_hot[right]


def spread_offsets(old: int, new: int) -> list[float]:
    """The old offsets along one axis on the scale of the new ones: steps 1, q, q^2, ... from the middle outwards, with
    the q between 1.01 and 1.5, found by halving, whose steps reach the new end."""
    low, high, q = 1.01, 1.5, 1.01
    while high - low > 1e-6:
        q = (low + high) / 2
        if (1 - q ** (old // 2)) / (1 - q) > new // 2:
            high = q
        else:
            low = q
    outwards, place = [], 1.0
    for step in range(old // 2):
        outwards.append(place)
        place += q ** (step + 1)
    return [-place for place in reversed(outwards)] + [0.0] + outwards
