"""How a grid of tokens is cut into windows: padded to whole windows, shifted, cut, and put back.

Every other block shifts the grid by half a window, around its edges, so that tokens meet others than before. Windows
on the last row and column then hold tokens from opposite sides of the picture; a mask keeps those apart.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from vitrail.model.positions import Grid

MASKED = -100.0  # added to the score of a pair that must not meet: e^-100 is nothing, and it is what the originals add


class Windows(NamedTuple):
    """The windows of one block on one grid. Nothing in it is learned."""

    grid: Grid
    size: Grid  # of a window, at most the grid
    shift: Grid  # (0, 0) in every other block, and on an axis that one window covers
    pad_before_shift: bool  # else after it: then padding lies between both ends of the picture

    @property
    def padded(self) -> Grid:
        """The grid in whole windows."""
        (height, width), (down, across) = self.grid, self.size
        return height + -height % down, width + -width % across

    @property
    def tokens(self) -> int:
        """M, the tokens of a window."""
        return self.size[0] * self.size[1]

    def partition(self, x: Tensor) -> Tensor:
        """(B, N, C), row by row -> (B, windows, M, C). What is padded is 0."""
        x = x.unflatten(1, self.grid)  # (B, h, w, C)
        x = self._shifted(self._padded(x)) if self.pad_before_shift else self._padded(self._shifted(x))
        (rows, columns), (down, across) = self.padded, self.size
        x = x.reshape(x.shape[0], rows // down, down, columns // across, across, -1)
        return x.transpose(2, 3).flatten(3, 4).flatten(1, 2)

    def reverse(self, x: Tensor) -> Tensor:
        """(B, windows, M, C) -> (B, N, C): every token back in its place, the padding gone."""
        (height, width), (rows, columns), (down, across) = self.grid, self.padded, self.size
        x = x.reshape(x.shape[0], rows // down, columns // across, down, across, -1)
        x = x.transpose(2, 3).flatten(3, 4).flatten(1, 2)  # (B, rows, columns, C)
        if self.pad_before_shift:
            return self._shifted(x, back=True)[:, :height, :width].flatten(1, 2)
        return self._shifted(x[:, :height, :width], back=True).flatten(1, 2)

    def token_numbers(self, device: torch.device) -> Tensor:
        """(windows, M): which token of the grid stands where; N for padding."""
        count = self.grid[0] * self.grid[1]
        numbers = torch.arange(1, count + 1, device=device)[None, :, None]  # from 1, for padding is 0
        return (self.partition(numbers) - 1)[0, :, :, 0] % (count + 1)

    def mask(self, device: torch.device) -> Tensor | None:
        """(windows, M, M), added to the scores: MASKED where two tokens lie on opposite sides of the picture.

        The padding is not masked, neither here nor in the originals: its tokens are attended to.
        """
        if not any(self.shift):
            return None
        cut = self._regions(device)
        return MASKED * (cut[:, :, None] != cut[:, None]).float()

    def meeting(self, device: torch.device) -> Tensor:
        """(N,): tokens with the same number attend to one another, being in one window and on one side of it."""
        tokens, regions = self.token_numbers(device), self._regions(device)  # (windows, M) each
        numbers = torch.arange(len(tokens), device=device)[:, None] * 9 + regions
        count = self.grid[0] * self.grid[1]
        return torch.zeros(count + 1, dtype=torch.long, device=device).scatter_(0, tokens.flatten(), numbers.flatten())[
            :-1
        ]

    def _regions(self, device: torch.device) -> Tensor:
        """(windows, M): tokens of a window with different numbers, 0 to 8, lie on opposite sides of the picture."""
        sides = [_sides(*axis, device) for axis in zip(self.padded, self.size, self.shift, strict=True)]
        region = (3 * sides[0][:, None] + sides[1]).flatten()  # of the grid as it stands shifted and padded
        return Windows(self.padded, self.size, (0, 0), True).partition(region[None, :, None])[0, :, :, 0]

    def _padded(self, x: Tensor) -> Tensor:
        down, right = (after - before for before, after in zip(self.grid, self.padded, strict=True))
        return F.pad(x, (0, 0, 0, right, 0, down)) if down or right else x

    def _shifted(self, x: Tensor, back: bool = False) -> Tensor:
        down, across = self.shift if back else (-self.shift[0], -self.shift[1])
        return torch.roll(x, (down, across), (1, 2)) if down or across else x


def windows_of(grid: Grid, window_size: Grid, shifted: bool, pad_before_shift: bool) -> Windows:
    """The windows on a grid: no larger than it, and unshifted on an axis that one window covers."""
    size = min(window_size[0], grid[0]), min(window_size[1], grid[1])
    half = [side // 2 if shifted and side < tokens else 0 for side, tokens in zip(window_size, grid, strict=True)]
    return Windows(grid, size, (half[0], half[1]), pad_before_shift)


def _sides(tokens: int, window: int, shift: int, device: torch.device) -> Tensor:
    """(tokens,): along one axis, 0 but in the last window; there 1 before the seam of the shift and 2 behind it."""
    if not shift:
        return torch.zeros(tokens, dtype=torch.long, device=device)
    place = torch.arange(tokens, device=device)
    return (place >= tokens - window).long() + (place >= tokens - shift).long()
