"""Large images piece by piece: overlapping windows of the model's size, and their masks merged into one.

Windows begin at whole patches, so that the cells of their masks fall onto each other and are merged as they are, never
enlarged to pixels: an image of 4000 x 3000 px and 20 classes takes 240 MB at half the resolution, not 960.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable

import torch
import torch.nn.functional as F
from torch import Tensor

from vitrail.inference.window_tiling import Offset, Tiling, tiling
from vitrail.tasks.letterbox import Letterbox

EDGE = 0.01  # the weight at a window's very edge, of 1 in its middle


def pad_to_tiling(image: Tensor, tiles: Tiling, fill: float = 0.0) -> Tensor:
    """(C, H, W) -> as large as the windows cover; the rest is `fill`, 0 being the mean of normalised images."""
    down, right = (size - own for size, own in zip(tiles.padded_size, image.shape[1:], strict=True))
    return F.pad(image, (0, right, 0, down), value=fill) if down or right else image


def cut_windows(image: Tensor, tiles: Tiling, offsets: Iterable[Offset] | None = None, fill: float = 0.0) -> Tensor:
    """(C, H, W) -> (n, C, h, w): all windows, or those at some of the offsets."""
    padded = pad_to_tiling(image, tiles, fill)
    height, width = tiles.window
    offsets = tiles.offsets if offsets is None else offsets
    return torch.stack([padded[:, top : top + height, left : left + width] for top, left in offsets])


class WindowMerger:
    """The windows' masks (K, h', w'), added one by one, each counting most in its middle."""

    def __init__(self, tiles: Tiling) -> None:
        self.tiles = tiles
        self.sum: Tensor | None = None  # (K, H', W')
        self.weight = torch.empty(0)  # (H', W')

    def add(self, offset: Offset, logits: Tensor) -> None:
        """Take in the logits (K, h', w') of the window at this offset."""
        logits = logits.detach().float().cpu()
        if len(self.tiles.offsets) == 1:  # the very numbers of the model
            self.sum, self.weight = logits, torch.ones(logits.shape[1:])
            return
        logits = self._with_whole_cells(logits)
        height, width = logits.shape[1:]
        if self.sum is None:
            size = [self._cells(side, axis, logits) for axis, side in enumerate(self.tiles.padded_size)]
            self.sum, self.weight = logits.new_zeros(len(logits), *size), logits.new_zeros(size)
        weight = window_weight((height, width))
        top, left = (self._cells(start, axis, logits) for axis, start in enumerate(offset))
        rows, columns = slice(top, top + height), slice(left, left + width)
        self.sum[:, rows, columns] += weight * logits
        self.weight[rows, columns] += weight

    def result(self) -> Tensor:
        """(K, H', W') over the area that the windows cover, once all of them were added."""
        if self.sum is None:
            raise RuntimeError("no window was added")
        return self.sum if len(self.tiles.offsets) == 1 else self.sum / self.weight

    def _with_whole_cells(self, logits: Tensor) -> Tensor:
        """A mask whose cells are not a whole number a patch (an odd patch at half the resolution) a little finer."""
        patches = [side // patch for side, patch in zip(self.tiles.window, self.tiles.patch, strict=True)]
        size = [count * -(-cells // count) for count, cells in zip(patches, logits.shape[1:], strict=True)]
        if size == list(logits.shape[1:]):
            return logits
        return F.interpolate(logits[None], size=size, mode="bilinear", align_corners=False)[0]

    def _cells(self, pixels: int, axis: int, logits: Tensor) -> int:
        return pixels * logits.shape[1 + axis] // self.tiles.window[axis]


def merge(logits: Iterable[Tensor], tiles: Tiling) -> Tensor:
    """Masks (K, h', w') of all windows in order -> (K, H', W')."""
    merger = WindowMerger(tiles)
    for offset, window_logits in zip(tiles.offsets, logits, strict=True):
        merger.add(offset, window_logits)
    return merger.result()


@torch.no_grad()
def run_windows(
    forward: Callable[[Tensor], Tensor], image: Tensor, window: tuple[int, int], patch: tuple[int, int], batch_size: int
) -> tuple[Tensor, Letterbox]:
    """(C, H, W), normalised -> the model's outputs over all of it, (K, H', W'), and where the image lies in them."""
    tiles = tiling((image.shape[1], image.shape[2]), window, patch)
    image = pad_to_tiling(image, tiles)  # once for all batches
    merger = WindowMerger(tiles)
    for start in range(0, len(tiles.offsets), batch_size):
        offsets = tiles.offsets[start : start + batch_size]
        for offset, logits in zip(offsets, forward(cut_windows(image, tiles, offsets)), strict=True):
            merger.add(offset, logits)
    return merger.result(), tiles.letterbox


def window_weight(size: tuple[int, int]) -> Tensor:
    """(h', w') smooth, 1 in the middle, next to nothing at the edges, where a window has the least context."""
    down, across = (
        EDGE + (1 - EDGE) * torch.sin(math.pi * (torch.arange(side) + 0.5) / side).square() for side in size
    )
    return down[:, None] * across
