"""A generated picture and all that is true of it: `vitrail make-data` draws scenes, tasks write their truth."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

SHAPES = ("circle", "square", "triangle", "star", "cross")


@dataclass(frozen=True)
class VisibleShape:
    """One shape of a scene, as much of it as is seen."""

    number: int  # of SHAPES
    radius: float  # from its middle to its farthest corner, in pixels
    pixels: NDArray[np.bool_]  # (S, S)

    @property
    def box(self) -> tuple[int, int, int, int]:
        """left, top, right, bottom, tight around the pixels; right and bottom are outside."""
        rows, columns = np.flatnonzero(self.pixels.any(axis=1)), np.flatnonzero(self.pixels.any(axis=0))
        return int(columns[0]), int(rows[0]), int(columns[-1]) + 1, int(rows[-1]) + 1


@dataclass(frozen=True)
class Scene:
    picture: NDArray[np.uint8]  # (S, S, 3)
    shapes: tuple[VisibleShape, ...]  # the main one first

    @property
    def mask(self) -> NDArray[np.uint8]:
        """0 for the ground, else 1 + the shape's number."""
        mask = np.zeros(self.picture.shape[:2], dtype=np.uint8)
        for shape in self.shapes:
            mask[shape.pixels] = shape.number + 1
        return mask
