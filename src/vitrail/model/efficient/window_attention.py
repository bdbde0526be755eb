"""Attention inside windows of patches, as ViTDet has it in all blocks but a few: large images for a plain ViT.

The grid is cut into windows of `side` x `side` patches from the top left. A patch looks at the patches of its own
window and at the prefix tokens ([CLS], registers, queries); prefix tokens look at everything. So work and memory grow
in line with the number of patches, every window reads and writes the same few prefix tokens, and what happens in one
window reaches the others through them and through the global blocks between.

This is full attention with a mask (`window_bias`), without ever computing what the mask hides. Windows at the right and
lower edge may be smaller: ViTDet pads them with zeros, which then take part in its attention; here nothing is padded.
The weights are those of full attention, and positions, also rotary ones, stay those of the whole grid.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import product
from typing import NamedTuple

import torch
from torch import Tensor

from vitrail.errors import VitrailError
from vitrail.model.positions import Grid, known

Attend = Callable[[Tensor, Tensor, Tensor], Tensor]


class Windows(NamedTuple):
    """How the tokens of a block are cut into windows."""

    side: int  # patches
    prefix: int  # tokens before the patches
    grid: Grid

    @property
    def cover_all(self) -> bool:
        """Whether there is but one window, so that attention is full."""
        return max(self.grid) <= self.side

    def numbers(self, device: torch.device) -> Tensor:
        """(N,): the number of each patch's window."""
        row, column = (torch.arange(length, device=device) // self.side for length in self.grid)
        return (row[:, None] * self.grid[1] + column).flatten()

    def strips(self) -> list[tuple[range, range]]:
        """Parts of the grid whose windows are of one size: the whole windows, and what is left at two edges. Each is
        (rows, columns), and the step of a range is the windows' side."""
        down, across = (_cut(length, self.side) for length in self.grid)
        return list(product(down, across))


def _cut(length: int, side: int) -> list[range]:
    whole = length - length % side
    parts = [range(0, whole, side), range(whole, length, length - whole or 1)]
    return [part for part in parts if part]


def attend_in_windows(q: Tensor, k: Tensor, v: Tensor, windows: Windows, attend: Attend) -> Tensor:
    """q, k, v (B, heads, prefix + N, d) -> (B, heads, prefix + N, d). attend: full attention of what it is given."""
    if not known(windows.grid):
        raise VitrailError("attention_window needs a fixed image size in an export: leave height and width fixed")
    if windows.cover_all:
        return attend(q, k, v)
    prefix = windows.prefix
    rows: dict[int, list[Tensor]] = {}
    for down, across in windows.strips():
        cut = partial(_in_windows, windows=windows, down=down, across=across)
        attended = attend(cut(q, after_prefix=False), cut(k), cut(v))  # nothing else holds these copies
        rows.setdefault(down.start, []).append(_back(attended, q.shape[0], down, across))  # (B, heads, R, C, d)
    patches = _joined([_joined(parts, dim=3) for parts in rows.values()], dim=2).flatten(2, 3)
    if not prefix:
        return patches
    return torch.cat([attend(q[:, :, :prefix], k, v), patches], dim=2)


def window_bias(windows: Windows, queries: Tensor) -> Tensor:
    """(R, M) for the query tokens (R,): 0 where one looks at a token, minus infinity where its window hides it."""
    window = windows.numbers(queries.device)  # (N,)
    home = torch.cat([window.new_full((windows.prefix,), -1), window])  # (M,)
    asked = home[queries][:, None]
    seen = (asked == home) | (asked == -1) | (home == -1)
    return torch.zeros(seen.shape, device=queries.device).masked_fill(~seen, -torch.inf)


def compared_pairs(windows: Windows) -> int:
    """How many pairs of tokens are compared by one head: those that the mask leaves."""
    patches = windows.grid[0] * windows.grid[1]
    inside = sum(len(down) * len(across) * (down.step * across.step) ** 2 for down, across in windows.strips())
    return inside + windows.prefix * (windows.prefix + 2 * patches)


def _in_windows(x: Tensor, windows: Windows, down: range, across: range, after_prefix: bool = True) -> Tensor:
    """(B, heads, prefix + N, d) -> (B n, heads, patches of a window, d), the windows of one strip, row by row.
    after_prefix: with the prefix tokens before the patches of each."""
    patches = x[:, :, windows.prefix :].unflatten(2, windows.grid)  # (B, heads, h, w, d)
    strip = patches[:, :, down.start : down.stop, across.start : across.stop]
    strip = strip.unflatten(3, (-1, across.step)).unflatten(2, (-1, down.step))  # (B, heads, n, side, n, side, d)
    cut = strip.permute(0, 2, 4, 1, 3, 5, 6).flatten(4, 5).flatten(0, 2)
    if not (after_prefix and windows.prefix):
        return cut
    prefix = x[:, :, : windows.prefix].repeat_interleave(len(down) * len(across), dim=0)
    return torch.cat([prefix, cut], dim=2)


def _back(x: Tensor, batch: int, down: range, across: range) -> Tensor:
    """(B n, heads, patches of a window, d) -> (B, heads, R, C, d): the strip again."""
    strip = x.unflatten(2, (down.step, across.step)).unflatten(0, (batch, len(down), len(across)))
    return strip.permute(0, 3, 1, 4, 2, 5, 6).flatten(4, 5).flatten(2, 3)


def _joined(parts: list[Tensor], dim: int) -> Tensor:
    return parts[0] if len(parts) == 1 else torch.cat(parts, dim)
