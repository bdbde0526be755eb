"""Annotations of a photo that is stored turned, made on the pixels as they are stored: turned along with it.

Only a photo on its side (EXIF orientations 5 to 8) shows by its size which way it was annotated; of others, and of
squares, annotations are taken to be of the upright photo.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Corners = tuple[float, float, float, float]  # left, top, right, bottom in pixels; right and bottom are outside
UPRIGHT = 1
ON_ITS_SIDE = (5, 6, 7, 8)  # EXIF orientations that exchange height and width


def stored_size(upright: tuple[int, int], orientation: int) -> tuple[int, int]:
    """(height, width) of the pixels in the file, from that of the upright picture."""
    return upright[::-1] if orientation in ON_ITS_SIDE else upright


def made_as_stored(made_for: tuple[int, int], upright: tuple[int, int], orientation: int) -> bool:
    """Whether an annotation for a size was made on the stored pixels."""
    return made_for != upright and made_for == stored_size(upright, orientation)


def turned_pixels(values: NDArray[Any], orientation: int) -> NDArray[Any]:
    """(H, W) as stored -> (W, H) upright."""
    match orientation:
        case 5:
            return values.T
        case 6:
            return np.rot90(values, -1)
        case 7:
            return np.rot90(values, 2).T
        case 8:
            return np.rot90(values, 1)
    return values


def turned_box(box: Corners, orientation: int, stored: tuple[int, int]) -> Corners:
    """A box (left, top, right, bottom) as stored -> upright; a box that ends before it begins stays one that does."""
    height, width = stored
    left, top, right, bottom = box
    match orientation:
        case 5:
            return top, left, bottom, right
        case 6:
            return height - bottom, left, height - top, right
        case 7:
            return height - bottom, width - right, height - top, width - left
        case 8:
            return top, width - right, bottom, width - left
    return box
