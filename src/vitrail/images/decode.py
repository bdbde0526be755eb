"""Reading one image: any usual file, in any usual mode, as uint8 (H, W, channels), or one sentence that says why not.

Pillow's `open` is lazy: it looks at the header only, and a truncated file fails later. Here a file is always decoded to
its last pixel, so that an image is whole or is an error, never half grey.
"""

from __future__ import annotations

import contextlib
import functools
import io
import logging
import warnings
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageFile, UnidentifiedImageError

from vitrail.images.arrays import is_more_than_a_picture, is_npy, is_tiff, load_npy, load_tiff
from vitrail.images.channels import from_array, from_pillow
from vitrail.images.decode_limits import decode_limits
from vitrail.images.header_checks import check_file, check_size
from vitrail.images.sniffing import ends_early, filled_up, what_it_is
from vitrail.images.stored_image import StoredImage
from vitrail.images.unreadable import UnreadableImage as UnreadableImage  # who reads images catches it
from vitrail.images.unreadable import as_sentences

# Named one by one: Pillow would also start Ghostscript for an EPS file that calls itself .jpg.
FORMATS = ("JPEG", "PNG", "WEBP", "BMP", "TIFF", "GIF", "AVIF", "HEIF", "JPEG2000", "PPM", "QOI", "MPO")
ENDINGS = {
    **dict.fromkeys((".jpg", ".jpeg", ".jpe", ".jfif"), "JPEG"),
    **dict.fromkeys((".png", ".apng"), "PNG"),
    **dict.fromkeys((".webp",), "WEBP"),
    **dict.fromkeys((".bmp", ".dib"), "BMP"),
    **dict.fromkeys((".tif", ".tiff"), "TIFF"),
    **dict.fromkeys((".gif",), "GIF"),
    **dict.fromkeys((".avif", ".avifs"), "AVIF"),
    **dict.fromkeys((".heic", ".heif", ".hif"), "HEIF"),
    **dict.fromkeys((".jp2", ".j2k", ".jpx"), "JPEG2000"),
    **dict.fromkeys((".pbm", ".pgm", ".ppm", ".pnm"), "PPM"),
    **dict.fromkeys((".qoi",), "QOI"),
    **dict.fromkeys((".npy",), "NPY"),
}
_TRANSPOSE = {  # EXIF orientation -> what puts the picture upright
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}
_ORIENTATION = 0x0112  # EXIF tag

# Pillow warns of odd EXIF blocks, palettes and large images; what matters of it is an error or a finding here. For the
# whole process, because `warnings.catch_warnings` is not safe in threads, and images are read in threads.
for _category in (UserWarning, RuntimeWarning):
    warnings.filterwarnings("ignore", category=_category, module=r"PIL\.")
for _library in ("PIL", "tifffile"):  # what they log of damaged files is for those who set up logging
    logging.getLogger(_library).addHandler(logging.NullHandler())


@dataclass(frozen=True, slots=True)
class ImageFacts:
    """What the header of an image file says."""

    format: str  # a value of ENDINGS
    mode: str  # Pillow's, or the dtype of an array
    width: int  # as shown: after the EXIF orientation
    height: int
    orientation: int = 1
    frames: int = 1
    transparent: bool = False


def kind_of(facts: ImageFacts) -> str:
    """Grey, colour, and so on: what a reader of the report would call it."""
    channels = facts.mode.partition(" x ")[2]  # of an array
    if channels:
        return {"1": "grey", "3": "colour"}.get(channels, f"of {channels} channels")
    if facts.transparent:
        return "transparent"
    if facts.mode == "CMYK":
        return "CMYK"
    if facts.mode in ("I", "F") or facts.mode.startswith("I;16"):
        return "more than 8 bits"
    return {"1": "black and white", "L": "grey"}.get(facts.mode, "colour")


def channels_of(mode: str) -> int:
    """'uint16 x 5' has 5; Pillow's own modes count as colour."""
    _, cross, count = mode.rpartition(" x ")
    return int(count) if cross and count.isdigit() else 3


def read_image(
    source: str | Path | bytes | StoredImage,
    channels: int = 3,
    *,
    target: tuple[int, int] | None = None,
    bits: int | None = None,
) -> NDArray[np.uint8]:
    """The image as uint8 (H, W, channels), upright, transparency laid over white (kept when `channels` is 4).

    target: (height, width) that will do: a JPEG is then decoded at 1/2, 1/4 or 1/8 of its size, never below the target.
    bits: how many bits of a 16-bit file are in use; without it the file's own range decides (see `channels.eight_bit`).
    """
    data, name = _bytes_of(source)
    if is_tiff(data):
        check_file(data, name)
    if is_npy(data) or is_more_than_a_picture(data, channels):
        values = load_npy(data, name) if is_npy(data) else load_tiff(data, name, channels)
        with as_sentences(name, data):
            return from_array(values, channels, bits)
    with open_image(data, name) as image, as_sentences(name, data):
        return from_pillow(decode(image, data, name, channels, target), channels, bits)


def facts_of(image: Image.Image) -> ImageFacts:
    """What the header of an open image says; its size is that of the upright picture."""
    turned = orientation(image)
    width, height = image.size if turned < 5 else image.size[::-1]
    transparent = image.mode in ("RGBA", "LA", "PA", "RGBa", "La") or "transparency" in image.info
    form = {"MPO": "JPEG"}.get(image.format or "", image.format or "")  # MPO: a JPEG with a second picture behind it
    return ImageFacts(form, image.mode, width, height, turned, getattr(image, "n_frames", 1), transparent)


def open_image(data: bytes, name: str) -> Image.Image:
    """Pillow's lazy image, once it is certain that there is one and that it is not too large."""
    if not data:
        raise UnreadableImage(name, "empty", "is empty (0 bytes)")
    check_file(data, name)
    formats = [form for form in known_formats() if decode_limits().allows(form)]
    try:
        with as_sentences(name, data):
            image = Image.open(io.BytesIO(data), formats=formats)
    except UnidentifiedImageError:
        raise UnreadableImage(name, *_what_else_it_is(data)) from None
    check_size(*image.size, name)
    return image


def decode(
    image: Image.Image, data: bytes, name: str, channels: int = 3, target: tuple[int, int] | None = None
) -> Image.Image:
    """All pixels of an opened image, upright."""
    if filled_up(data) or (ImageFile.LOAD_TRUNCATED_IMAGES and ends_early(data)):  # another library may have set that
        raise UnreadableImage(name, "truncated", "is truncated: its end was never written")
    if image.format in ("JPEG", "MPO") and (target is not None or channels == 1):
        height, width = target or (image.height, image.width)
        upright = target is None or orientation(image) < 5
        image.draft("L" if channels == 1 else None, (width, height) if upright else (height, width))
    image.load()
    turn = _TRANSPOSE.get(orientation(image))  # read after loading: Pillow turns a TIFF by itself and drops the tag
    return image if turn is None else image.transpose(turn)


def orientation(image: Image.Image) -> int:
    """The EXIF orientation, 1 to 8; 1 where there is none or where it makes no sense."""
    if image.format == "PNG" and not {"exif", "Raw profile type exif"} & image.info.keys():
        return 1  # Pillow would decode the file in search of it, and its failure to do so would be lost here
    try:
        value = image.getexif().get(_ORIENTATION, 1)
    except Exception:  # a damaged EXIF block raises many things, and says nothing about the pixels
        return 1
    return value if value in _TRANSPOSE else 1


# ---- opening


def _what_else_it_is(data: bytes) -> tuple[str, str]:
    """Of a file that is no image of an allowed format: (kind, why)."""
    if decode_limits().formats is not None:
        with contextlib.suppress(Exception), Image.open(io.BytesIO(data), formats=known_formats()) as image:
            return "not an image", f"is of the format {image.format}, which is not taken here: send it as JPEG or PNG"
    return what_it_is(data, known_formats())


def _bytes_of(source: str | Path | bytes | StoredImage) -> tuple[bytes, str]:
    if isinstance(source, bytes):
        return source, "the image"
    if isinstance(source, StoredImage):
        return source.read(), source.name
    return read_file(Path(source)), str(source)


def read_file(path: Path | StoredImage) -> bytes:
    """The bytes of a file; UnreadableImage where it is missing, empty or a folder."""
    if isinstance(path, StoredImage):
        return path.read()
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        why = "is a link that leads nowhere" if path.is_symlink() else "does not exist"
        raise UnreadableImage(str(path), "missing", why) from None
    except IsADirectoryError:
        raise UnreadableImage(str(path), "not an image", "is a folder, not an image") from None
    except (OSError, ValueError) as error:  # ValueError: a name with a NUL in it
        why = str(getattr(error, "strerror", None) or error)
        raise UnreadableImage(str(path), "missing", f"cannot be read: {why}") from None
    if not data:
        raise UnreadableImage(str(path), "empty", "is empty (0 bytes)")
    return data


@functools.cache
def known_formats() -> tuple[str, ...]:
    """Those of FORMATS that this Pillow knows; HEIF comes with the package pillow-heif."""
    try:
        import pillow_heif

        pillow_heif.register_heif_opener()
    except ImportError:
        pass
    Image.init()
    return tuple(form for form in FORMATS if form in Image.OPEN)
