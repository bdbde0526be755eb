"""Checks of an image for one model before it is decoded: a small file can claim to be enormous."""

from __future__ import annotations

import io
import math

import numpy as np

from vitrail.data.loading.transforms import resized_pixels
from vitrail.images.arrays import is_npy, is_tiff
from vitrail.images.decode import open_image, orientation
from vitrail.images.header_checks import check_size
from vitrail.images.tiff_header import tiff_pages
from vitrail.images.unreadable import UnreadableImage, as_sentences
from vitrail.inference.read_source import strip_error
from vitrail.inference.window_tiling import tiling
from vitrail.weights.preprocessing import Preprocessing

MAX_WINDOWS = 64  # of an image that is processed in sliding windows


def check_image_header(data: bytes, preprocessing: Preprocessing, max_pixels: int, name: str) -> tuple[int, int]:
    """(height, width) of the upright image from its header. Raises UnreadableImage; nothing is decoded."""
    height, width = _header_size(data, preprocessing.channels, name)
    check_size(width, height, name)
    if height * width > max_pixels:
        raise _too_large(name, f"has {width:,} x {height:,} pixels, more than {max_pixels:,}: make it smaller first")
    if resized_pixels(height, width, preprocessing) > max_pixels:
        raise strip_error(name, (height, width), preprocessing)
    return height, width


def check_windows(size: tuple[int, int], preprocessing: Preprocessing, patch: tuple[int, int], name: str) -> None:
    """Each sliding window is a forward pass of its own."""
    if len(tiling(size, preprocessing.size, patch).offsets) > MAX_WINDOWS:
        window = " x ".join(map(str, preprocessing.size[::-1]))
        raise _too_large(name, f"takes more than {MAX_WINDOWS} windows of {window} pixels: make it smaller first")


def _header_size(data: bytes, channels: int, name: str) -> tuple[int, int]:
    if is_npy(data):
        return _array_size(data, name)
    try:
        with open_image(data, name) as image:
            height, width = image.height, image.width
            return (height, width) if orientation(image) < 5 else (width, height)
    except UnreadableImage as error:
        if channels > 3 and is_tiff(data) and error.kind != "too large":  # of more samples than Pillow knows
            page = next(tiff_pages(data), None)
            if page is not None:
                return page.height, page.width
        raise


def _array_size(data: bytes, name: str) -> tuple[int, int]:
    with as_sentences(name, data):
        stream = io.BytesIO(data)
        version = np.lib.format.read_magic(stream)
        read_header = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        shape, _, dtype = read_header(stream)
    if len(shape) not in (2, 3) or 0 in shape:
        raise UnreadableImage(name, "wrong channels", f"has the shape {shape}: (height, width, channels) is needed")
    if math.prod(shape) * dtype.itemsize > len(data):
        raise UnreadableImage(name, "truncated", "is truncated: its end is missing")
    return shape[0], shape[1]


def _too_large(name: str, reason: str) -> UnreadableImage:
    return UnreadableImage(name, "too large", reason)
