"""Pictures inside of a page, as data URIs: photographs as JPEG, matrices of numbers as PNG of few colours."""

from __future__ import annotations

import base64
import io

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from vitrail.visuals.colours import HEAT, SIGNED, coloured, scaled

LEVELS = 96  # of a matrix: more than an eye tells apart, and the file is a third of true colour
GAP = LEVELS  # what is no number


def jpeg(pixels: NDArray[np.uint8], quality: int = 80) -> str:
    """(H, W, 3) as a JPEG in a data: address."""
    return _uri(Image.fromarray(pixels), "JPEG", quality=quality)


def png(pixels: NDArray[np.uint8]) -> str:
    """(H, W) or (H, W, 3) as a PNG in a data: address."""
    return _uri(Image.fromarray(pixels), "PNG", optimize=True)


def matrix_png(values: NDArray[np.floating], signed: bool) -> str:
    """(rows, columns) in the colours of a map, one pixel a number."""
    known = np.isfinite(values)
    levels = (scaled(np.where(known, values, 0), signed) * (LEVELS - 1)).round().clip(0, LEVELS - 1).astype(np.uint8)
    picture = Image.fromarray(np.where(known, levels, np.uint8(GAP)))
    colours = coloured(np.linspace(0, 1, LEVELS), SIGNED if signed else HEAT)
    picture.putpalette([*colours.ravel().tolist(), 150, 150, 150])
    return _uri(picture, "PNG")  # optimize=True takes longer, for 0.1 % fewer bytes


def _uri(picture: Image.Image, form: str, **options: object) -> str:
    buffer = io.BytesIO()
    picture.save(buffer, form, **options)
    return f"data:image/{form.lower()};base64," + base64.b64encode(buffer.getvalue()).decode()
