"""One look at one file: is it whole, what is it, and what does it look like in small?"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vitrail.data.checks.flatness import NOT_FLAT, Flatness, flatness
from vitrail.data.checks.perceptual_hash import hash_picture, small_picture
from vitrail.data.loading.split import digest
from vitrail.images.arrays import is_npy, is_tiff, load_npy, load_tiff
from vitrail.images.channels import depth_of, eight_bit, from_pillow, is_deep
from vitrail.images.decode import ImageFacts, decode, facts_of, open_image, read_file
from vitrail.images.sniffing import ends_early
from vitrail.images.unreadable import UnreadableImage, as_sentences

_TARGET = (64, 64)  # a JPEG may be decoded this small: all of its data is still read, and a truncated one still fails


@dataclass(slots=True)
class Examined:
    """What one look at a file showed."""

    path: Path
    digest: bytes = b""  # of the bytes; empty where they could not be read
    problem: UnreadableImage | None = None
    facts: ImageFacts | None = None
    depth: int | None = None  # bits in use, of an image with more than 8
    hash: int = 0  # this and the next two only after a full look
    small: NDArray[np.uint8] | None = None
    flatness: Flatness = NOT_FLAT


def examine(path: Path, fast: bool = False) -> Examined:
    """A full look decodes every pixel. A fast one reads the header, and decodes only what seems to lack its end."""
    examined = Examined(path)
    try:
        data = read_file(path)
        examined.digest = digest(data)
        if is_npy(data):
            _look_at_values(examined, data, load_npy(data, str(path)), "NPY")
        else:
            _look_at_picture(examined, data, fast)
    except UnreadableImage as error:
        examined.problem = error
    return examined


# ---- parts


def _look_at_picture(examined: Examined, data: bytes, fast: bool) -> None:
    name = str(examined.path)
    try:
        image = open_image(data, name)
    except UnreadableImage:
        if not is_tiff(data) or ends_early(data):
            raise
        return _look_at_values(examined, data, load_tiff(data, name), "TIFF")  # more channels than Pillow knows
    with image, as_sentences(name, data):
        examined.facts = facts_of(image)
        if fast and not ends_early(data):
            return None
        whole = decode(image, data, name, target=_TARGET)
        examined.depth = depth_of(np.asarray(whole)) if is_deep(whole) else None
        _look_at_pixels(examined, from_pillow(whole, 3))


def _look_at_values(examined: Examined, data: bytes, values: NDArray[Any], form: str) -> None:
    with as_sentences(str(examined.path), data):
        pixels = eight_bit(values)
    height, width, channels = values.shape
    examined.facts = ImageFacts(form, f"{values.dtype} x {channels}", width, height)
    examined.depth = depth_of(values)
    _look_at_pixels(examined, pixels)


def _look_at_pixels(examined: Examined, pixels: NDArray[np.uint8]) -> None:
    examined.hash, examined.small, examined.flatness = hash_picture(pixels), small_picture(pixels), flatness(pixels)
