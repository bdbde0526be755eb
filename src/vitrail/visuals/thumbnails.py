"""Small pictures for pages that need no other file."""

from __future__ import annotations

import base64
import io
from pathlib import Path

from PIL import Image

from vitrail.images.decode import UnreadableImage, read_image
from vitrail.images.stored_image import StoredImage

SIDE = 192  # pixels of the longer side: sharp at half of it on a screen of double density


def thumbnail(path: Path | StoredImage, side: int = SIDE) -> str | None:
    """The image in small as a data URI, upright; None where it cannot be read."""
    try:
        image = Image.fromarray(read_image(path, 3, target=(side, side)))
    except UnreadableImage:
        return None
    image.thumbnail((side, side))
    buffer = io.BytesIO()
    image.save(buffer, "JPEG", quality=80)
    return "data:image/jpeg;base64," + base64.b64encode(buffer.getvalue()).decode()
