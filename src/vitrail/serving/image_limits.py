"""Checks of an image before it is decoded: a small file can claim to be enormous."""

from __future__ import annotations

import io
import math

import numpy as np

from vitrail.data.loading.transforms import before_crop
from vitrail.images.arrays import is_npy, is_tiff
from vitrail.images.decode import open_image, orientation
from vitrail.images.unreadable import UnreadableImage, as_sentences
from vitrail.inference.sliding_window import tiling
from vitrail.serving.limits import Limits
from vitrail.weights.preprocessing import Preprocessing

MAX_WINDOWS = 64  # of an image that is processed in sliding windows
MAX_JPEG_SCANS = 200  # a progressive JPEG has about ten; each scan costs a pass over all pixels


def check_image_header(data: bytes, preprocessing: Preprocessing, limits: Limits, name: str) -> tuple[int, int]:
    """(height, width) of the upright image from its header. Raises UnreadableImage; nothing is decoded."""
    height, width = _header_size(data, preprocessing.channels, name)
    if height * width > limits.pixels:
        raise _too_large(name, f"has {width:,} x {height:,} pixels, more than {limits.pixels:,}: make it smaller first")
    if resized_pixels(height, width, preprocessing) > limits.pixels:
        model = " x ".join(map(str, preprocessing.size[::-1]))
        raise _too_large(name, f"is a strip of {width:,} x {height:,} pixels: too long and thin for {model}")
    if data.startswith(b"\xff\xd8\xff") and data.count(b"\xff\xda") > MAX_JPEG_SCANS:
        raise _too_large(name, f"is a JPEG of more than {MAX_JPEG_SCANS} scans: save it again as an ordinary one")
    return height, width


def check_windows(size: tuple[int, int], preprocessing: Preprocessing, patch: tuple[int, int], name: str) -> None:
    """Each sliding window is a forward pass of its own."""
    if len(tiling(size, preprocessing.size, patch).offsets) > MAX_WINDOWS:
        window = " x ".join(map(str, preprocessing.size[::-1]))
        raise _too_large(name, f"takes more than {MAX_WINDOWS} windows of {window} pixels: make it smaller first")


def resized_pixels(height: int, width: int, preprocessing: Preprocessing) -> float:
    """Pixels after the resize. 'crop' enlarges a long, thin image until its short side covers the model's input."""
    target = before_crop(preprocessing)
    if preprocessing.resize != "crop":
        return float(target[0] * target[1])
    return height * width * max(target[0] / height, target[1] / width) ** 2


def _header_size(data: bytes, channels: int, name: str) -> tuple[int, int]:
    if is_npy(data):
        return _array_size(data, name)
    try:
        with open_image(data, name) as image:
            height, width = image.height, image.width
            return (height, width) if orientation(image) < 5 else (width, height)
    except UnreadableImage:
        if channels > 3 and is_tiff(data):  # of more samples than Pillow knows
            return _tiff_size(data, name)
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


def _tiff_size(data: bytes, name: str) -> tuple[int, int]:
    try:
        import tifffile
    except ImportError:
        raise UnreadableImage(name, "not an image", "is a TIFF that needs one more package: tifffile") from None
    with as_sentences(name, data), tifffile.TiffFile(io.BytesIO(data)) as file:
        sides = dict(zip(file.series[0].axes, file.series[0].shape, strict=True))
        return int(sides["Y"]), int(sides["X"])


def _too_large(name: str, reason: str) -> UnreadableImage:
    return UnreadableImage(name, "too large", reason)
