"""A value for every pixel of an image, in a file or made from one: what masks and depth maps have in common."""

from __future__ import annotations

import abc
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vitrail.dataset import StructuredTarget
from vitrail.images.exif import UPRIGHT, turned_pixels
from vitrail.images.unreadable import UnreadableImage


@dataclass(frozen=True, slots=True)
class PixelMap(StructuredTarget, abc.ABC):
    """Maps are compared by content, not by path: `mark` is a digest of the content. `str()` is part of a run's
    fingerprint, so it names everything that decides what `read` returns."""

    mark: str
    path: Path = field(compare=False)  # the file that a complaint names
    size: tuple[int, int] = field(compare=False)  # height and width, those of the upright picture
    turn: int = field(default=UPRIGHT, kw_only=True)  # the picture's EXIF orientation, if the map is of stored pixels

    @abc.abstractmethod
    def read(self) -> NDArray[Any]:
        """(H, W) of the upright picture. Raises UnreadableImage where there is no map."""

    def upright(self, values: NDArray[Any], noun: str) -> NDArray[Any]:
        """The values (h, w) of the file, turned as the picture is. Raises UnreadableImage where the sizes differ."""
        turned = turned_pixels(values, self.turn)
        if turned.shape != self.size:
            sizes = f"{turned.shape[1]} x {turned.shape[0]}, and its image is {self.size[1]} x {self.size[0]}"
            raise UnreadableImage(str(self.path), "of another size", f"is a {noun} of {sizes}: make them the same")
        return np.ascontiguousarray(turned)
