"""One source, whatever holds it (a path, bytes, a Pillow image, an array, an address in a manifest), as the pixels that
the model takes."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageOps

from vitrail.data.loading.transforms import before_crop, prepare, resized_pixels
from vitrail.errors import VitrailError
from vitrail.images.channels import from_array, from_pillow
from vitrail.images.decode import read_image
from vitrail.images.decode_limits import decode_limits
from vitrail.images.stored_image import StoredImage
from vitrail.images.unreadable import UnreadableImage, as_sentences
from vitrail.weights.preprocessing import Preprocessing

Source: TypeAlias = str | Path | bytes | Image.Image | NDArray[Any] | StoredImage
SOURCES = (str, Path, bytes, Image.Image, np.ndarray, StoredImage)

_LOADING = threading.Lock()  # Pillow reads a file on first use, and two threads may have been given one image


def read_source(
    source: Source, preprocessing: Preprocessing, name: str, fast_decode: bool = False
) -> NDArray[np.uint8]:
    """uint8 (h, w, C) of the model's size, or UnreadableImage. `name`: what an error calls it, if it has no path.

    fast_decode: a large JPEG is decoded at 1/2, 1/4 or 1/8 of its size, which changes its pixels a little.
    """
    target = before_crop(preprocessing) if fast_decode else None
    picture = read_picture(source, preprocessing.channels, name, target, preprocessing.bits)
    height, width = picture.shape[:2]
    if resized_pixels(height, width, preprocessing) > decode_limits().pixels:
        raise strip_error(name_of(source, name), (height, width), preprocessing)
    return prepare(picture, preprocessing)


def name_of(source: Source, otherwise: str = "the image") -> str:
    """What a row or an error calls a source: its path as it was given, its name in a manifest, or `otherwise`."""
    if isinstance(source, StoredImage):
        return source.name
    return str(source) if isinstance(source, str | Path) else otherwise


def strip_error(name: str, size: tuple[int, int], preprocessing: Preprocessing) -> UnreadableImage:
    """For an image so long and thin that covering the model's input would make it enormous."""
    model = " x ".join(map(str, preprocessing.size[::-1]))
    strip = f"{size[1]:,} x {size[0]:,}"
    return UnreadableImage(name, "too large", f"is a strip of {strip} pixels: too long and thin for {model}")


def read_own_size(source: Source, preprocessing: Preprocessing, name: str) -> NDArray[np.uint8]:
    """uint8 (H, W, C), upright, at its own size, with the model's channels and bit depth."""
    return read_picture(source, preprocessing.channels, name, bits=preprocessing.bits)


def read_picture(
    source: Source, channels: int, name: str, target: tuple[int, int] | None = None, bits: int | None = None
) -> NDArray[np.uint8]:
    """uint8 (H, W, C), upright, at its own size, or for a JPEG at a smaller one that still covers the target.

    bits: in use of an image with more than 8; None: its own range decides."""
    if isinstance(source, str | Path | StoredImage):
        return read_image(source, channels, target=target, bits=bits)
    if isinstance(source, bytes):
        return _from_bytes(source, channels, name, target, bits)
    if isinstance(source, Image.Image):
        return _from_picture(source, channels, name, bits)
    if isinstance(source, np.ndarray):
        return _from_numbers(source, channels, name, bits)
    kind = type(source).__name__
    raise VitrailError(f"{name} is a {kind}: give a path, bytes, a Pillow image or an array (height, width, channels)")


def _from_bytes(
    data: bytes, channels: int, name: str, target: tuple[int, int] | None, bits: int | None
) -> NDArray[np.uint8]:
    try:
        return read_image(data, channels, target=target, bits=bits)
    except UnreadableImage as error:
        raise UnreadableImage(name, error.kind, error.why) from None


def _from_picture(picture: Image.Image, channels: int, name: str, bits: int | None) -> NDArray[np.uint8]:
    """As the same file would be read by its path: upright, and transparency over white."""
    with as_sentences(name, b""):
        with _LOADING:
            picture.load()
        return from_pillow(ImageOps.exif_transpose(picture), channels, bits)


def _from_numbers(values: NDArray[Any], channels: int, name: str, bits: int | None) -> NDArray[np.uint8]:
    if values.ndim not in (2, 3) or not values.size:
        why = f"is an array of shape {values.shape}: one image is (height, width, channels), give several as a list"
        raise UnreadableImage(name, "not an image", why)
    with as_sentences(name, b""):
        return from_array(values, channels, bits)
