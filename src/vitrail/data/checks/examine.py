"""One look at one file: is it whole, what is it, and what does it look like in small?"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vitrail.data.checks.flatness import NOT_FLAT, Flatness, flatness
from vitrail.data.checks.perceptual_hash import hash_picture, small_picture
from vitrail.data.loading.split import digest
from vitrail.images.arrays import is_npy, is_tiff, load_npy, load_tiff
from vitrail.images.channels import declared_depth, depth_of, eight_bit, from_pillow, has_depth, is_deep, is_share
from vitrail.images.decode import ImageFacts, decode, facts_of, open_image, read_file
from vitrail.images.sniffing import ends_early
from vitrail.images.stored_image import StoredImage
from vitrail.images.unreadable import UnreadableImage, as_sentences

_TARGET = (64, 64)  # a JPEG may be decoded this small: all of its data is still read, and a truncated one still fails


@dataclass(slots=True)
class Examined:
    """What one look at a file showed."""

    path: Path
    digest: bytes = b""  # of the bytes; empty where they could not be read
    problem: UnreadableImage | None = None
    facts: ImageFacts | None = None
    deep: bool = False  # whether it holds whole numbers of more than 8 bits
    depth: int | None = None  # of these, the bits in use; None: it holds values below 0
    share: bool | None = None  # of real numbers: whether they lie between 0 and 1, and 1 is white
    hash: int = 0  # this and the next two only after a full look
    small: NDArray[np.uint8] | None = None
    flatness: Flatness = NOT_FLAT


def examine(source: Path | StoredImage, fast: bool = False) -> Examined:
    """A full look decodes every pixel. A fast one reads the header, and decodes only what seems to lack its end, and
    what has more than 8 bits or real numbers: only its values tell how many are in use, and what is white.

    The name of an image in a manifest stands for a path."""
    path = Path(source.name) if isinstance(source, StoredImage) else source
    return _examined(path, lambda: read_file(source), fast)


def common_depth(examined: Sequence[Examined]) -> int | None:
    """The bit depth that all images of a set with more than 8 bits are read with: the largest that one has. None where
    there are none, or where some hold values below 0, which have no black of their own."""
    depths = [image.depth for image in examined if image.deep and image.problem is None]
    return None if None in depths else max((depth for depth in depths if depth is not None), default=None)


# ---- parts


def _examined(path: Path, read: Callable[[], bytes], fast: bool) -> Examined:
    examined = Examined(path)
    try:
        data = read()
        examined.digest = digest(data)
        if is_npy(data):
            _look_at_values(examined, data, load_npy(data, str(path)), "NPY")
        else:
            _look_at_picture(examined, data, fast)
    except UnreadableImage as error:
        examined.problem = error
    return examined


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
        examined.deep = is_deep(image) and image.mode != "F"
        if fast and not ends_early(data) and not is_deep(image):
            return None
        declared = declared_depth(image)
        whole = decode(image, data, name, target=_TARGET)
        if examined.deep:
            examined.depth = declared or depth_of(np.asarray(whole))
        elif is_deep(image):
            examined.share = is_share(np.asarray(whole))
        if not fast or ends_early(data):
            _look_at_pixels(examined, from_pillow(whole, 3))
        return None


def _look_at_values(examined: Examined, data: bytes, values: NDArray[Any], form: str) -> None:
    with as_sentences(str(examined.path), data):
        pixels = eight_bit(values)
    height, width, channels = values.shape
    examined.facts = ImageFacts(form, f"{values.dtype} x {channels}", width, height)
    examined.deep, examined.depth, examined.share = has_depth(values), depth_of(values), is_share(values)
    _look_at_pixels(examined, pixels)


def _look_at_pixels(examined: Examined, pixels: NDArray[np.uint8]) -> None:
    examined.hash, examined.small, examined.flatness = hash_picture(pixels), small_picture(pixels), flatness(pixels)
