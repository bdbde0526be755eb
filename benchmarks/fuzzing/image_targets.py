"""What is fuzzed: the checks of an image's header, and what they let through to the decoders."""

from __future__ import annotations

import functools
import io
import struct
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from benchmarks.fuzzing.target import Target
from tests.images import hostile

if TYPE_CHECKING:
    from vitrail.serving.decoding.picture_reader import PictureReader

MAX_PIXELS = 250_000  # that pass the checks: what a decoder takes for them is far below the bound of memory
ENCODED = (
    *(("JPEG", {}), ("JPEG", {"progressive": True}), ("PNG", {}), ("GIF", {}), ("BMP", {}), ("PPM", {})),
    *(("WEBP", {}), ("WEBP", {"lossless": True}), ("AVIF", {}), ("JPEG2000", {}), ("MPO", {})),
    *(("TIFF", {}), ("TIFF", {"compression": "tiff_lzw"}), ("TIFF", {"tiled": True})),
)


@functools.cache
def reader(resize: str, dense: bool) -> PictureReader:
    from vitrail.serving.decoding.picture_reader import PictureReader
    from vitrail.weights.preprocessing import Preprocessing

    return PictureReader(Preprocessing(size=(32, 32), resize=resize), dense, (4, 4), MAX_PIXELS)


def header(data: bytes, folder: Path) -> None:
    """Whatever the header claims, it is refused, or has a size within the limits. No pixel is decoded."""
    from vitrail.images.decode_limits import limit_decoding
    from vitrail.serving.decoding.image_limits import check_image_header

    with limit_decoding(MAX_PIXELS):
        height, width = check_image_header(data, reader("crop", False).preprocessing, MAX_PIXELS, "it")
    assert 0 < height * width <= MAX_PIXELS


def image(data: bytes, folder: Path) -> None:
    """What passes the checks is decoded for a model that crops, pads, squashes or slides, as its first byte says."""
    from vitrail.images.decode_limits import limit_decoding

    resize = ("crop", "pad", "squash", "window")[(data[:1] or b"\0")[0] % 4]
    with limit_decoding(MAX_PIXELS):
        picture = reader(resize, resize in ("pad", "window")).read(data[1:], "it")
    assert picture.pixels.shape == (32, 32, 3) and picture.pixels.dtype == np.uint8


@functools.cache
def image_seeds() -> list[bytes]:
    """One small picture in each format, and files that claim too much."""
    from PIL import Image

    from vitrail.images.decode import known_formats

    pixels = np.random.default_rng(0).integers(0, 256, (20, 24, 3), np.uint8)
    seeds = []
    for form, options in ENCODED:
        if form in known_formats() or form == "MPO":
            buffer, picture = io.BytesIO(), Image.fromarray(pixels)
            if options.pop("tiled", False):
                options = {"tiffinfo": {322: 16, 323: 16}, "compression": "tiff_adobe_deflate"}
            extra = {"save_all": True, "append_images": [picture]} if form == "MPO" else {}
            picture.save(buffer, form, **options, **extra)
            seeds.append(buffer.getvalue())
    buffer = io.BytesIO()
    np.save(buffer, pixels)
    seeds += [buffer.getvalue(), hostile.qoi(8, 8, b"\xfe\1\2\3" + b"\xc0" * 63)]
    seeds += [hostile.jpeg2000(64, precinct=2), hostile.jpeg2000_in_boxes(size=64), hostile.ome_tiff(planes=2)]
    seeds += [hostile.tiff_of_one_tile(tile=64), hostile.tiff_of_small_tiles(4), hostile.tiff_of_size(0, 0)]
    seeds += [hostile.png_strip(1000), big_tiff(), with_orientation(seeds[0])]
    return seeds


def big_tiff() -> bytes:
    """A BigTIFF of 8 x 8 grey pixels."""
    values = {256: 8, 257: 8, 258: 8, 259: 1, 262: 1, 273: 16, 277: 1, 278: 8, 279: 64}
    entries = b"".join(struct.pack("<HHQQ", tag, 16, 1, value) for tag, value in values.items())
    head = struct.pack("<2sHHHQ", b"II", 43, 8, 0, 80)
    return head + bytes(64) + struct.pack("<Q", len(values)) + entries + bytes(8)


def with_orientation(jpeg: bytes) -> bytes:
    """A JPEG that lies on its side."""
    exif = b"Exif\0\0" + struct.pack("<2sHIHHHIII", b"II", 42, 8, 1, 0x0112, 3, 1, 6, 0)
    return jpeg[:2] + b"\xff\xe1" + struct.pack(">H", len(exif) + 2) + exif + jpeg[2:]


IMAGE_TARGETS = {
    "header": Target(header, image_seeds),
    "image": Target(image, lambda: [bytes([number % 4]) + seed for number, seed in enumerate(image_seeds())]),
}
