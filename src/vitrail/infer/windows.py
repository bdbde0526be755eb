"""Large pictures piece by piece: overlapping windows of the model's size, and their masks as one again.

Windows begin at whole patches, so that the cells of their masks fall onto each other and are merged as they are, never
enlarged to pixels: a picture of 4000 x 3000 px and 20 classes takes 240 MB at half the resolution, not 960.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from vitrail.errors import VitrailError
from vitrail.tasks.frame import Frame

OVERLAP = 0.25  # of a window at the least: what stands at a window's edge is seen with more around it in the next one
EDGE = 0.01  # the weight at a window's very edge, of 1 in its middle

Place = tuple[int, int]  # top, left


@dataclass(frozen=True)
class Tiling:
    """How windows cover a picture."""

    own: tuple[int, int]  # the picture, height and width
    window: tuple[int, int]
    patch: tuple[int, int]  # windows begin at whole ones
    places: tuple[Place, ...]  # of the windows, row by row

    @property
    def padded(self) -> tuple[int, int]:
        """The area that the windows cover: the picture, and below and right of it less than a patch or a window."""
        bottom, right = self.places[-1]
        return bottom + self.window[0], right + self.window[1]

    @property
    def frame(self) -> Frame:
        """Where the picture lies in what `merge` gives."""
        return Frame(self.own, (0, 0, *self.own), self.padded)


def tiling(
    own: tuple[int, int], window: tuple[int, int], patch: tuple[int, int] = (1, 1), overlap: float = OVERLAP
) -> Tiling:
    """Windows over a picture of size `own`, as few as overlap by that share, evenly spread; one where one is enough."""
    if min(own) < 1:
        raise VitrailError(f"a picture of {own[0]} x {own[1]} pixels has nothing to look at")
    if not 0 <= overlap < 1:
        raise VitrailError(f"the overlap of windows is at least 0 and below 1, not {overlap}")
    tops, lefts = (_begins(*axis, overlap) for axis in zip(own, window, patch, strict=True))
    return Tiling(own, window, patch, tuple((top, left) for top in tops for left in lefts))


def _begins(size: int, window: int, patch: int, overlap: float) -> list[int]:
    """Where windows begin along one axis, at whole patches."""
    if window % patch:
        raise VitrailError(f"a window of {window} pixels is not whole patches of {patch}")
    last = max(0, -(-(size - window) // patch))  # in patches, rounded up: what is beyond the picture is padding
    step = max(1, math.floor((1 - overlap) * window / patch))  # at the most
    count = -(-last // step)
    return [patch * round(last * i / count) for i in range(count + 1)] if count else [0]


def padded(picture: Tensor, tiles: Tiling, fill: float = 0.0) -> Tensor:
    """(C, H, W) -> as large as the windows cover; the rest is `fill`, 0 being the mean of normalised pictures."""
    down, right = (whole - own for whole, own in zip(tiles.padded, picture.shape[1:], strict=True))
    return F.pad(picture, (0, right, 0, down), value=fill) if down or right else picture


def cut(picture: Tensor, tiles: Tiling, places: Iterable[Place] | None = None, fill: float = 0.0) -> Tensor:
    """(C, H, W) -> (n, C, h, w): all windows, or those at some of the places."""
    whole = padded(picture, tiles, fill)
    height, width = tiles.window
    chosen = tiles.places if places is None else places
    return torch.stack([whole[:, top : top + height, left : left + width] for top, left in chosen])


class Merging:
    """The windows' masks (K, h', w'), added one by one, each counting most in its middle."""

    def __init__(self, tiles: Tiling) -> None:
        self.tiles = tiles
        self.sum: Tensor | None = None  # (K, H', W')
        self.weight = torch.empty(0)  # (H', W')

    def add(self, place: Place, logits: Tensor) -> None:
        logits = logits.detach().float().cpu()
        if len(self.tiles.places) == 1:  # the very numbers of the model
            self.sum, self.weight = logits, torch.ones(logits.shape[1:])
            return
        logits = self._with_whole_cells(logits)
        height, width = logits.shape[1:]
        if self.sum is None:
            size = [self._cells(whole, axis, logits) for axis, whole in enumerate(self.tiles.padded)]
            self.sum, self.weight = logits.new_zeros(len(logits), *size), logits.new_zeros(size)
        weight = window_weight((height, width))
        top, left = (self._cells(begin, axis, logits) for axis, begin in enumerate(place))
        rows, columns = slice(top, top + height), slice(left, left + width)
        self.sum[:, rows, columns] += weight * logits
        self.weight[rows, columns] += weight

    def result(self) -> Tensor:
        """(K, H', W') over the area that the windows cover, once all of them were added."""
        if self.sum is None:
            raise RuntimeError("no window was added")
        return self.sum if len(self.tiles.places) == 1 else self.sum / self.weight

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
    merging = Merging(tiles)
    for place, one in zip(tiles.places, logits, strict=True):
        merging.add(place, one)
    return merging.result()


@torch.no_grad()
def seen_through_windows(
    forward: Callable[[Tensor], Tensor], picture: Tensor, window: tuple[int, int], patch: tuple[int, int], batch: int
) -> tuple[Tensor, Frame]:
    """(C, H, W), normalised -> what the model says about all of it (K, H', W'), and where the picture lies in that."""
    tiles = tiling((picture.shape[1], picture.shape[2]), window, patch)
    merging = Merging(tiles)
    for start in range(0, len(tiles.places), batch):
        here = tiles.places[start : start + batch]
        for place, logits in zip(here, forward(cut(picture, tiles, here)), strict=True):
            merging.add(place, logits)
    return merging.result(), tiles.frame


def window_weight(size: tuple[int, int]) -> Tensor:
    """(h', w') smooth, 1 in the middle, next to nothing at the edges, where a window knows least."""
    down, across = (
        EDGE + (1 - EDGE) * torch.sin(math.pi * (torch.arange(side) + 0.5) / side).square() for side in size
    )
    return down[:, None] * across
