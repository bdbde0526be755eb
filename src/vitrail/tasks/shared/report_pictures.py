"""The pictures that the report shows side by side for masks and depth maps: read, and brought to the page's size."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from vitrail.images.decode import UnreadableImage, read_image

SIDE = 256  # pixels of a picture's longer side
AT_ONCE = 8  # images; the rest unfolds

Values = TypeVar("Values", bound=np.generic)


def fit_to_page(shape: Sequence[int]) -> tuple[int, int]:
    """Width and height for the page; a small picture is enlarged, so that its pixels can be seen."""
    scale = SIDE / max(shape)
    return max(1, round(shape[1] * scale)), max(1, round(shape[0] * scale))


def resize_map(values: NDArray[Values], size: tuple[int, int]) -> NDArray[Values]:
    """A map (H, W) at this width and height; values are repeated or left out, never mixed."""
    return np.asarray(Image.fromarray(values).resize(size, Image.Resampling.NEAREST))


def read_for_page(path: Path, size: tuple[int, int]) -> NDArray[np.uint8] | None:
    """The picture at this width and height; None where the file can no longer be read."""
    try:
        picture = Image.fromarray(read_image(path, 3, target=(size[1], size[0])))
    except UnreadableImage:
        return None
    return np.asarray(picture.resize(size, Image.Resampling.BILINEAR))


def shown_size(shape: Sequence[int]) -> dict[str, Any]:
    """What the template needs to know of the size: the page shows an enlarged picture pixel by pixel."""
    size = fit_to_page(shape)
    return {"size": size, "enlarged": size[0] > shape[1]}
