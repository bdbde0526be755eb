"""What a request may cost, and what is looked at before a picture is decoded: a small file can claim to be enormous."""

from __future__ import annotations

import io
import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np

from vitrail.data.arrays import is_npy, is_tiff
from vitrail.data.images import open_image, orientation
from vitrail.data.inputs import before_crop
from vitrail.data.unreadable import UnreadableImage, as_sentences
from vitrail.infer.windows import tiling
from vitrail.serving.refusals import Refusal, busy
from vitrail.weights.preprocessing import Preprocessing

WINDOWS = 64  # of a picture
SCANS = 200  # of a JPEG: a progressive one has about ten, and each of thousands would go over all pixels again


@dataclass(frozen=True)
class Limits:
    bytes: int = 32_000_000  # of a request's body
    pixels: int = 50_000_000  # of a picture, as its header tells and as the model's resize would make it
    images: int = 32  # of a request
    waiting: int = 128  # images in hand, decoded or not
    slow: int = 4  # explanations and walks in hand, each of which takes as long as many images
    held: int = 512_000_000  # bytes of all bodies in hand
    patience: float = 10.0  # seconds without a byte from a client, or below a slow modem's rate
    seconds: float = 60.0  # for an answer, the wait included
    connections: int = 512


class Places:
    """So many may be in hand; who comes when all are taken is sent away instead of being made to wait."""

    def __init__(self, most: int, what: str) -> None:
        self.most, self.what, self.taken = most, what, 0

    def check(self, seconds: float = 1.0) -> None:
        """Who would find no place is told before anything was read."""
        if self.taken >= self.most:
            raise self._full(seconds)

    @contextmanager
    def take(self, number: int, seconds: float = 1.0) -> Iterator[None]:
        """seconds: when to come back. A place is free again however the work ends, a client that hung up included."""
        if self.taken + number > self.most:
            raise self._full(seconds)
        self.taken += number
        try:
            yield
        finally:
            self.taken -= number

    def _full(self, seconds: float) -> Refusal:
        return busy(f"the server is busy with {self.what}: try again in a moment", seconds)


def check_picture(data: bytes, preprocessing: Preprocessing, limits: Limits, name: str) -> tuple[int, int]:
    """(height, width) of the upright picture by its header, or UnreadableImage; nothing is decoded yet."""
    height, width = _size_of(data, preprocessing.channels, name)
    if height * width > limits.pixels:
        raise _too_large(name, f"has {width:,} x {height:,} pixels, more than {limits.pixels:,}: make it smaller first")
    if resized_pixels(height, width, preprocessing) > limits.pixels:
        model = " x ".join(map(str, preprocessing.size[::-1]))
        raise _too_large(name, f"is a strip of {width:,} x {height:,} pixels: too long and thin for {model}")
    if data.startswith(b"\xff\xd8\xff") and data.count(b"\xff\xda") > SCANS:
        raise _too_large(name, f"is a JPEG of more than {SCANS} scans: save it again as an ordinary one")
    return height, width


def check_windows(size: tuple[int, int], preprocessing: Preprocessing, patch: tuple[int, int], name: str) -> None:
    """A picture that is seen piece by piece keeps the model busy for each of them."""
    if len(tiling(size, preprocessing.size, patch).places) > WINDOWS:
        window = " x ".join(map(str, preprocessing.size[::-1]))
        raise _too_large(name, f"takes more than {WINDOWS} windows of {window} pixels: make it smaller first")


def resized_pixels(height: int, width: int, preprocessing: Preprocessing) -> float:
    """What resizing makes on the way to the model's size: 'crop' blows a strip up until its short side is covered."""
    goal = before_crop(preprocessing)
    if preprocessing.resize != "crop":
        return float(goal[0] * goal[1])
    return height * width * max(goal[0] / height, goal[1] / width) ** 2


def _size_of(data: bytes, channels: int, name: str) -> tuple[int, int]:
    if is_npy(data):
        return _size_of_array(data, name)
    try:
        with open_image(data, name) as image:
            height, width = image.height, image.width
            return (height, width) if orientation(image) < 5 else (width, height)
    except UnreadableImage:
        if channels > 3 and is_tiff(data):  # of more samples than Pillow knows
            return _size_of_pages(data, name)
        raise


def _size_of_array(data: bytes, name: str) -> tuple[int, int]:
    with as_sentences(name, data):
        stream = io.BytesIO(data)
        version = np.lib.format.read_magic(stream)
        read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        shape, _, kind = read(stream)
    if len(shape) not in (2, 3) or 0 in shape:
        raise UnreadableImage(name, "wrong channels", f"has the shape {shape}: (height, width, channels) is needed")
    if math.prod(shape) * kind.itemsize > len(data):
        raise UnreadableImage(name, "truncated", "is truncated: its end is missing")
    return shape[0], shape[1]


def _size_of_pages(data: bytes, name: str) -> tuple[int, int]:
    try:
        import tifffile
    except ImportError:
        raise UnreadableImage(name, "not an image", "is a TIFF that needs one more package: tifffile") from None
    with as_sentences(name, data), tifffile.TiffFile(io.BytesIO(data)) as file:
        sides = dict(zip(file.series[0].axes, file.series[0].shape, strict=True))
        return int(sides["Y"]), int(sides["X"])


def _too_large(name: str, why: str) -> UnreadableImage:
    return UnreadableImage(name, "too large", why)
