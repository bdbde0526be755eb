"""Where the overlapping windows of a large image lie. Without torch: the server counts them before it decodes."""

from __future__ import annotations

import math
from dataclasses import dataclass

from vitrail.errors import VitrailError
from vitrail.tasks.letterbox import Letterbox

OVERLAP = 0.25  # of a window at the least: what lies at a window's edge has more context in the next one

Offset = tuple[int, int]  # top, left


@dataclass(frozen=True)
class Tiling:
    """How windows cover an image."""

    own: tuple[int, int]  # the image, height and width
    window: tuple[int, int]
    patch: tuple[int, int]  # windows begin at whole ones
    offsets: tuple[Offset, ...]  # of the windows, row by row

    @property
    def padded_size(self) -> tuple[int, int]:
        """The area that the windows cover: the image, and below and right of it less than a patch or a window."""
        bottom, right = self.offsets[-1]
        return bottom + self.window[0], right + self.window[1]

    @property
    def letterbox(self) -> Letterbox:
        """Where the image lies in what `merge` gives."""
        return Letterbox(self.own, (0, 0, *self.own), self.padded_size)


def tiling(
    own: tuple[int, int], window: tuple[int, int], patch: tuple[int, int] = (1, 1), overlap: float = OVERLAP
) -> Tiling:
    """Windows over an image of size `own`, as few as overlap by that share, evenly spread; one where one is enough."""
    if min(own) < 1:
        raise VitrailError(f"a picture of {own[0]} x {own[1]} pixels has nothing to look at")
    if not 0 <= overlap < 1:
        raise VitrailError(f"the overlap of windows is at least 0 and below 1, not {overlap}")
    tops, lefts = (_starts(*axis, overlap) for axis in zip(own, window, patch, strict=True))
    return Tiling(own, window, patch, tuple((top, left) for top in tops for left in lefts))


def _starts(size: int, window: int, patch: int, overlap: float) -> list[int]:
    """Where windows begin along one axis, at whole patches."""
    if window % patch:
        raise VitrailError(f"a window of {window} pixels is not whole patches of {patch}")
    last = max(0, -(-(size - window) // patch))  # in patches, rounded up: what is beyond the image is padding
    step = max(1, math.floor((1 - overlap) * window / patch))  # at the most
    count = -(-last // step)
    return [patch * round(last * i / count) for i in range(count + 1)] if count else [0]
