"""Many small pictures packed into few large ones, for pages that show thousands."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from vitrail.images.decode import UnreadableImage, read_image
from vitrail.visuals.embedded import jpeg

SIDE = 64  # pixels of the longer side of a small picture
COLUMNS = 32  # and rows of a sheet: 2048 x 2048 pixels, which every browser can draw from

Small = NDArray[np.uint8]  # (h, w, 3)


def small_picture(path: Path) -> Small:
    """The image in small, upright; an empty one where it cannot be read any more."""
    try:
        image = Image.fromarray(read_image(path, 3, target=(SIDE, SIDE)))
    except UnreadableImage:
        return np.zeros((0, 0, 3), np.uint8)
    image.thumbnail((SIDE, SIDE))
    return np.asarray(image)


def picture_sheets(pictures: Sequence[Small]) -> list[str]:
    """Sheets of COLUMNS x COLUMNS pictures as data URIs, row by row, each at the left top of its field."""
    each = COLUMNS * COLUMNS
    return [_sheet(pictures[start : start + each]) for start in range(0, len(pictures), each)]


def _sheet(pictures: Sequence[Small]) -> str:
    rows = -(-len(pictures) // COLUMNS)
    sheet = np.full((rows * SIDE, COLUMNS * SIDE, 3), 128, np.uint8)
    for number, picture in enumerate(pictures):
        top, left = number // COLUMNS * SIDE, number % COLUMNS * SIDE
        sheet[top : top + picture.shape[0], left : left + picture.shape[1]] = picture
    return jpeg(sheet, quality=70)
