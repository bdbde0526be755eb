"""From whatever a file holds to uint8 (H, W, channels): modes, transparency, depths of more than 8 bits, many channels.

Decisions, each the least surprising one:
- Transparency is laid over white, the paper that cut-out pictures are made for; a model of 4 channels gets it as its
  fourth.
- Grey becomes colour by repeating, colour becomes grey by its luminance. Nothing else is guessed: 5 channels are not 3.
- Values of more than 8 bits are scaled by their bit depth rather than from darkest to brightest: stretching each image
  to its own range would take from a set the very brightness that may tell its classes apart. A trained model has one
  depth for all images (`Preprocessing.bits`), beyond which values are clipped and counted; without one, the values of
  each image decide.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from vitrail.images.unreadable import WrongChannels

DEPTHS = (8, 10, 12, 14, 16, 20, 24, 32)  # of cameras, scanners, microscopes; kept in files of 16 or 32 bits
_DEEP = ("I", "F", "I;16", "I;16B", "I;16L", "I;16N")  # Pillow's modes of more than 8 bits, all grey
_MAX_SAMPLE_VALUE = 281  # TIFF tag


def from_pillow(image: Image.Image, channels: int, bits: int | None = None) -> NDArray[np.uint8]:
    """A decoded Pillow image as (H, W, channels); channels is 1, 3 or 4 (RGBA), or 2 (grey and alpha)."""
    if is_deep(image):
        return from_array(np.asarray(image), channels, bits or declared_depth(image))
    if channels == 4 and image.mode == "RGBX":
        return np.array(image)  # a TIFF with a fourth band that is not transparency, such as near infrared
    if channels not in (1, 2, 3, 4):
        raise WrongChannels(f"has {len(image.getbands())} channels, not the {channels} that are needed")
    if channels in (1, 3) and _is_transparent(image):
        image = _over_white(image)
    mode = {1: "L", 2: "LA", 3: "RGB", 4: "RGBA"}[channels]
    pixels = np.array(image if image.mode == mode else image.convert(mode))
    return pixels[..., None] if pixels.ndim == 2 else pixels


def from_array(values: NDArray[Any], channels: int, bits: int | None = None) -> NDArray[np.uint8]:
    """(H, W) or (H, W, C) of any real numbers as uint8 (H, W, channels)."""
    pixels = eight_bit(values[..., None] if values.ndim == 2 else values, bits)
    own_channels = pixels.shape[2]
    if own_channels == channels:
        return np.ascontiguousarray(pixels)
    if own_channels == 1 and channels == 3:
        return np.repeat(pixels, 3, axis=2)
    if own_channels in (1, 3) and channels in (1, 2, 3, 4):
        return from_pillow(Image.fromarray(pixels.squeeze(2) if own_channels == 1 else pixels), channels)
    hint = ": channels come last (height, width, channels)" if values.shape[0] == channels else ""
    raise WrongChannels(f"has {own_channels} channels, not the {channels} that are needed{hint}")


def eight_bit(values: NDArray[Any], bits: int | None = None) -> NDArray[np.uint8]:
    """Real numbers of any kind as 0..255.

    Integers: 2**bits - 1 becomes 255, and what is above is clipped. Without `bits`, it is the smallest usual depth that
    holds the largest value, so that 12-bit data in a 16-bit file use the whole range. Floats: 0..1 becomes 0..255,
    larger ones go as integers do. Values of 8 bits stay as they are. Signed values have no black of their own: without
    `bits` these alone are stretched from their smallest to their largest. What is not finite is black.
    """
    if values.dtype == np.uint8:
        return values
    if values.dtype == np.bool_:
        return values.astype(np.uint8) * np.uint8(255)
    if values.dtype.kind not in "uif":
        raise WrongChannels(f"holds values of type {values.dtype}, not numbers")
    if values.dtype.kind == "f":
        values = np.nan_to_num(values, nan=0.0, posinf=0.0, neginf=0.0)
    low, high = float(values.min()), float(values.max())
    if values.dtype.kind == "f" and low >= 0 and high <= 1:
        low, top = 0.0, 1.0
    elif bits is not None:
        low, top = 0.0, 2.0**bits - 1
        _count_clipped(values, top)
    elif low < 0:
        top = high
    else:
        low, top = 0.0, max(2.0 ** _depth(high) - 1, high if high >= 2.0 ** DEPTHS[-1] else 0.0)
    scale = 255 / (top - low) if top > low else 0.0
    exact: NDArray[Any] = values.astype(np.float32 if high < 2**20 else np.float64)
    scaled = (exact - low) * scale
    return np.rint(np.clip(scaled, 0, 255)).astype(np.uint8)


def is_deep(image: Image.Image) -> bool:
    """Whether an image has more than 8 bits a channel, which are then scaled."""
    return image.mode in _DEEP


def depth_of(values: NDArray[Any]) -> int | None:
    """The depth that `eight_bit` takes values to have; None where they have 8 bits, or are scaled otherwise."""
    if not has_depth(values) or not values.size or values.min() < 0:
        return None
    return _depth(float(values.max()))


def has_depth(values: NDArray[Any]) -> bool:
    """Whether these are whole numbers of more than 8 bits."""
    return values.dtype.kind in "ui" and values.dtype.itemsize > 1


def is_share(values: NDArray[Any]) -> bool | None:
    """Whether real numbers lie between 0 and 1, and `eight_bit` takes 1 for white; None where they are whole, or all
    black, which is 0 in every range."""
    if values.dtype.kind != "f":
        return None
    known = np.nan_to_num(values, nan=0.0, posinf=0.0, neginf=0.0)
    if not known.any():
        return None
    return bool(known.min() >= 0 and known.max() <= 1)


def declared_depth(image: Image.Image) -> int | None:
    """The depth that a TIFF declares by its largest allowed value, where it does."""
    return _bits_of(getattr(image, "tag_v2", {}).get(_MAX_SAMPLE_VALUE))


@dataclass
class Clipped:
    values: int = 0  # that were above the depth


_CLIPPED: ContextVar[Clipped | None] = ContextVar("clipped", default=None)  # images are read in threads


@contextmanager
def counting_clipped() -> Iterator[Clipped]:
    """Counts the values that are clipped while this thread reads an image."""
    clipped = Clipped()
    token = _CLIPPED.set(clipped)
    try:
        yield clipped
    finally:
        _CLIPPED.reset(token)


# ---- parts


def _count_clipped(values: NDArray[Any], top: float) -> None:
    clipped = _CLIPPED.get()
    if clipped is not None:
        clipped.values += int(np.count_nonzero(values > top))


def _depth(high: float) -> int:
    """The smallest usual depth that holds a value."""
    return next((depth for depth in DEPTHS if high < 2.0**depth), DEPTHS[-1])


def _is_transparent(image: Image.Image) -> bool:
    return image.mode in ("RGBA", "LA", "PA", "RGBa", "La") or "transparency" in image.info


def _over_white(image: Image.Image) -> Image.Image:
    image = image.convert("RGBA")
    return Image.alpha_composite(Image.new("RGBA", image.size, "white"), image).convert("RGB")


def _bits_of(largest: Any) -> int | None:
    """The depth that a TIFF declares by its largest allowed value, where it does."""
    value = largest[0] if isinstance(largest, tuple) and largest else largest
    return int(value).bit_length() if isinstance(value, int) and 255 < value < 2**32 else None
