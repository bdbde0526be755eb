"""A colour for every class, the same in index PNGs, overlays, boxes and on the report's page.

Colours are of middling lightness, so that they stand out on white as on black, and the first ones are far apart.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from PIL import Image

Pixels = NDArray[np.uint8]

# Hand-picked: neighbours in the list differ in hue and in lightness, for eyes that see few hues too.
FIRST = (
    "#3d84ea", "#f0883d", "#2f9e4f", "#e8436f", "#22bfd0", "#9b3fc0", "#a04a1c", "#c9b21a", "#e58fd6", "#86cc4a",
    "#1f6f80", "#6a5fd8", "#f5b08a", "#826e04", "#d92a1c", "#7fb0d6", "#a26093", "#5bb591", "#b4065f", "#c6a3f2",
)  # fmt: skip
NEUTRAL = (128, 132, 140)  # what is nothing in particular
UNKNOWN = (0, 0, 0)  # pixels of which nothing is known
NOTHING = ("background", "void", "unlabeled", "unlabelled", "none", "other")
COLOURS = 256  # of a PNG with a palette
STRENGTH = 0.55  # of the colour in an overlay, the rest is the picture
GOLDEN = 0.6180339887  # steps of this part of the circle never come near an old hue soon


@functools.cache
def _generated(count: int) -> tuple[tuple[int, int, int], ...]:
    """The colours by number: first the hand-picked ones, then turns of the hue at three lightnesses."""
    picked = tuple(_from_hex(text) for text in FIRST[:count])
    return picked + tuple(
        _from_oklch((0.66, 0.54, 0.76)[i % 3], (0.15, 0.10)[i // 3 % 2], 2 * math.pi * (i * GOLDEN % 1))
        for i in range(len(picked), count)
    )


def palette(labels: Sequence[str]) -> Pixels:
    """(K, 3) one colour a class in the order of the labels; a class that is nothing in particular is grey."""
    nothing = [label.strip().lower() in NOTHING for label in labels]
    colours = iter(_generated(len(labels)))
    return np.array([NEUTRAL if grey else next(colours) for grey in nothing], np.uint8).reshape(-1, 3)


def index_picture(mask: Pixels, labels: Sequence[str]) -> Image.Image:
    """(H, W) class numbers as a picture whose pixels are these numbers, and which any viewer shows in colours."""
    table = np.zeros((COLOURS, 3), np.uint8)
    table[:] = UNKNOWN
    table[: len(labels)] = palette(labels)
    picture = Image.fromarray(np.ascontiguousarray(mask, np.uint8), mode="L")
    picture.putpalette(table.tobytes())  # turns it into mode P
    return picture


def coloured(mask: Pixels, labels: Sequence[str]) -> Pixels:
    """(H, W) class numbers -> (H, W, 3)."""
    table = np.zeros((COLOURS, 3), np.uint8)
    table[:] = UNKNOWN
    table[: len(labels)] = palette(labels)
    return table[mask]


def overlay(mask: Pixels, image: Pixels, labels: Sequence[str]) -> Pixels:
    """The classes' colours over the picture, (H, W, 3), and lines where one class meets another."""
    colours = coloured(mask, labels)
    shown = (STRENGTH * colours + (1 - STRENGTH) * image[..., :3]).astype(np.uint8)
    edge = np.zeros(mask.shape, bool)
    edge[:, 1:] |= mask[:, 1:] != mask[:, :-1]
    edge[1:] |= mask[1:] != mask[:-1]
    shown[edge] = colours[edge]
    return shown


def hexadecimal(colour: Sequence[int]) -> str:
    """A colour as CSS writes it: #rrggbb."""
    return "#" + "".join(f"{int(part):02x}" for part in colour)


def _from_hex(text: str) -> tuple[int, int, int]:
    return int(text[1:3], 16), int(text[3:5], 16), int(text[5:7], 16)


def _from_oklch(lightness: float, chroma: float, hue: float) -> tuple[int, int, int]:
    """Björn Ottosson's OKLCH, in which equal steps look equal -> sRGB; what a screen cannot show is cut off."""
    a, b = chroma * math.cos(hue), chroma * math.sin(hue)
    long = (lightness + 0.3963377774 * a + 0.2158037573 * b) ** 3
    medium = (lightness - 0.1055613458 * a - 0.0638541728 * b) ** 3
    short = (lightness - 0.0894841775 * a - 1.2914855480 * b) ** 3
    linear = (
        4.0767416621 * long - 3.3077115913 * medium + 0.2309699292 * short,
        -1.2684380046 * long + 2.6097574011 * medium - 0.3413193965 * short,
        -0.0041960863 * long - 0.7034186147 * medium + 1.7076147010 * short,
    )
    red, green, blue = (round(255 * _gamma(min(1.0, max(0.0, part)))) for part in linear)
    return red, green, blue


def _gamma(linear: float) -> float:
    return 12.92 * linear if linear <= 0.0031308 else 1.055 * linear ** (1 / 2.4) - 0.055
