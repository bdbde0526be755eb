"""Boxes and their names on a picture."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont

from vitrail.visuals.palette import palette

Colour = tuple[int, int, int]


def drawn(image: NDArray[np.uint8], objects: Sequence[Mapping[str, Any]], labels: Sequence[str]) -> Image.Image:
    """The picture (H, W, 3) with the objects of an answer, a colour a class; the surest lie on top."""
    colours = {label: colour_of(colour) for label, colour in zip(labels, palette(labels), strict=True)}
    picture = Image.fromarray(np.ascontiguousarray(image[..., :3]))
    for one in reversed(objects):
        draw_box(picture, one["box"], colours[one["label"]], f"{one['label']} {one['score']:.2f}")
    return picture


def draw_box(picture: Image.Image, box: Sequence[float], colour: Colour, text: str = "") -> None:
    """A frame as thick as the picture's size asks for, its name on a plate above it, or inside if that has no room."""
    pen = ImageDraw.Draw(picture)
    side = min(picture.size)
    thick = max(1, round(side / 240))
    left, top, right, bottom = (round(place) for place in box)
    pen.rectangle((left, top, max(left, right - 1), max(top, bottom - 1)), outline=colour, width=thick)
    if not text or side < 160:  # on a small picture names would hide what they name
        return
    font = ImageFont.load_default(size=max(10, side / 40))
    wide, high = (round(length) for length in pen.textbbox((0, 0), text, font=font)[2:])
    x = max(0, min(left, picture.width - wide - 4))
    y = top - high - 3 if top >= high + 3 else top + thick
    pen.rectangle((x, y, x + wide + 4, y + high + 3), fill=colour)
    pen.text((x + 2, y + 1), text, fill=readable_on(colour), font=font)


def colour_of(values: Sequence[int]) -> Colour:
    red, green, blue = (int(value) for value in values)
    return red, green, blue


def readable_on(colour: Colour) -> Colour:
    """Black or white, whichever stands out."""
    light = 0.299 * colour[0] + 0.587 * colour[1] + 0.114 * colour[2]
    return (0, 0, 0) if light > 140 else (255, 255, 255)
