"""A class for every pixel: what segmentation learns from, read when it is needed, from a file or from outlines."""

from __future__ import annotations

import abc
import hashlib
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vitrail.images.arrays import is_npy, load_npy
from vitrail.images.decode import decode, open_image, read_file
from vitrail.images.decode_limits import decode_limits
from vitrail.images.exif import stored_size
from vitrail.images.polygons import inside
from vitrail.images.rle import decode_rle
from vitrail.images.unreadable import UnreadableImage, as_sentences, too_large
from vitrail.tasks.shared.pixel_maps import PixelMap
from vitrail.text import listing

UNKNOWN = 254  # in a table of values: no class
MOST = 254  # classes, so that these two stay free


class Mask(PixelMap):
    """A class for every pixel, and IGNORE where nothing is to be learnt."""

    __slots__ = ()

    @abc.abstractmethod
    def read(self) -> NDArray[np.uint8]:
        """(H, W) class numbers, and IGNORE. UnreadableImage where there is no mask."""

    def __str__(self) -> str:
        return f"mask {self.mark}"


@dataclass(frozen=True, slots=True)
class MaskCode:
    """What the values of mask files mean: indices by a table of 256, colours by their own."""

    table: bytes  # index -> class number, IGNORE or UNKNOWN
    colours: tuple[tuple[int, int], ...] = ()  # (256 * 256 * red + 256 * green + blue, class number or IGNORE), sorted
    named: str = ""  # where the classes come from, for sentences

    def classes(self, values: NDArray[Any]) -> tuple[NDArray[np.uint8], list[str]]:
        """The class of each value, and the values that are no class, as one would write them."""
        return self._of_colours(values) if values.ndim == 3 else self._of_indices(values)

    def _of_indices(self, values: NDArray[Any]) -> tuple[NDArray[np.uint8], list[str]]:
        table = np.frombuffer(self.table, dtype=np.uint8)
        if values.dtype != np.uint8:
            beyond = np.unique(values[(values < 0) | (values > 255)])
            if beyond.size:
                return np.zeros(values.shape, np.uint8), [f"{value}" for value in beyond.tolist()]
        classes = table[values.astype(np.uint8, copy=False)]
        return classes, [str(value) for value in np.unique(values[classes == UNKNOWN]).tolist()]

    def _of_colours(self, values: NDArray[Any]) -> tuple[NDArray[np.uint8], list[str]]:
        keys = values.astype(np.int32) @ np.array([65536, 256, 1], dtype=np.int32)
        known = np.array([key for key, _ in self.colours], dtype=np.int32)
        numbers = np.array([number for _, number in self.colours], dtype=np.uint8)
        place = np.minimum(np.searchsorted(known, keys), len(known) - 1)
        strange = np.unique(keys[known[place] != keys]).tolist()
        return numbers[place], [f"{key >> 16} {key >> 8 & 255} {key & 255}" for key in strange]


@dataclass(frozen=True, slots=True)
class MaskFile(Mask):
    """A mask in a file of its own."""

    code: MaskCode = field(repr=False)

    def read(self) -> NDArray[np.uint8]:
        name = str(self.path)
        values = load_values(read_file(self.path), name, bool(self.code.colours))
        classes, strange = self.code.classes(values)
        classes = self.upright(classes, "mask")
        if strange:
            raise UnreadableImage(name, "unknown class", no_class(strange, values.ndim == 3, self.code.named))
        return classes

    def __str__(self) -> str:  # another table would make another mask of the same file
        return f"mask {self.mark} {hash_of(self.code)} {self.turn}"


@dataclass(frozen=True, slots=True)
class Region:
    """What an annotation outlines: polygons (x, y, x, y, ...), or run lengths and the size that they are of."""

    number: int  # the class, or IGNORE
    polygons: tuple[tuple[float, ...], ...] = ()
    runs: str | tuple[int, ...] | None = None
    runs_size: tuple[int, int] = (0, 0)

    def covers(self, size: tuple[int, int]) -> NDArray[np.bool_]:
        if self.runs is not None:
            if self.runs_size != size:
                raise ValueError(f"its runs are of {self.runs_size[1]} x {self.runs_size[0]} pixels")
            return decode_rle(self.runs, size)
        covered = np.zeros(size, dtype=np.bool_)
        for polygon in self.polygons:
            covered |= inside(np.array(polygon, dtype=np.float64).reshape(-1, 2), size)
        return covered


@dataclass(frozen=True, slots=True)
class DrawnMask(Mask):
    """A mask drawn from outlines, over class 0, the background. Later regions cover earlier ones."""

    picture: str = field(compare=False)  # named in complaints beside the file
    regions: tuple[Region, ...] = field(compare=False, repr=False)

    def read(self) -> NDArray[np.uint8]:
        size = stored_size(self.size, self.turn)
        if size[0] * size[1] > decode_limits().pixels:  # as the annotation says of an image that cannot be read
            raise too_large(str(self.path))
        canvas = np.zeros(size, dtype=np.uint8)
        for region in self.regions:
            try:
                canvas[region.covers(size)] = region.number
            except (ValueError, OverflowError) as error:
                why = f"has a broken outline for {self.picture} ({error}): mend or remove it"
                raise UnreadableImage(str(self.path), "damaged", why) from None
        return self.upright(canvas, "mask")


def load_values(data: bytes, name: str, by_colour: bool) -> NDArray[Any]:
    """Indices (H, W), or colours (H, W, 3). A palette file has both; `by_colour` says which are meant."""
    if is_npy(data):
        return _flat(load_npy(data, name), name, by_colour)
    with open_image(data, name) as image, as_sentences(name, data):
        if image.format in ("JPEG", "MPO"):
            why = "is a JPEG, which blurs the borders between classes: save masks as PNG"
            raise UnreadableImage(name, "not a mask", why)
        whole = decode(image, data, name)
        if whole.mode == "P" and not by_colour:
            return np.array(whole)
        if whole.mode in ("P", "PA", "RGBA", "RGBX", "CMYK"):
            whole = whole.convert("RGB")
        values = np.asarray(whole)
        values = values[..., 0] if whole.mode == "LA" else values
        return _flat(values // _stretched(data), name, by_colour)


def no_class(strange: list[str], colours: bool, named: str) -> str:
    """The sentence on values that are no class, without its subject."""
    what = "colour" if colours else "index"
    many = f"the {what} {strange[0]}" if len(strange) == 1 else f"{len(strange)} {what} values ({listing(strange, 5)})"
    mend = f"a row '{strange[0]} void'" if colours else f"ignore {strange[0]}"
    it = "it" if len(strange) == 1 else "them"
    return f"holds {many}, no class of {named or 'this set'}: name {it}, or say {mend} if nothing is to be learnt there"


def hash_of(code: MaskCode) -> str:
    """The same on every machine, unlike `hash`."""
    return hashlib.blake2b(code.table + repr(code.colours).encode(), digest_size=4).hexdigest()


# ---- parts


def _flat(values: NDArray[Any], name: str, by_colour: bool) -> NDArray[Any]:
    """(H, W) where there is one channel, or three that say the same: indices that a program saved as colour."""
    if values.dtype == np.bool_:
        values = values.astype(np.uint8)
    if values.dtype.kind not in "ui":
        raise UnreadableImage(name, "not a mask", f"holds values of type {values.dtype}, not whole numbers")
    if values.ndim == 2 or values.shape[2] == 1:
        return values if values.ndim == 2 else values[..., 0]
    if values.shape[2] != 3:
        raise UnreadableImage(name, "not a mask", f"has {values.shape[2]} channels, and a mask has 1 or 3")
    if by_colour:
        return values
    if (values == values[..., :1]).all():
        return values[..., 0]
    why = (
        "is a mask in colours, and no file says what they mean: give a file of colours with lines such as '128 0 0 car'"
    )
    raise UnreadableImage(name, "not a mask", why)


def _stretched(data: bytes) -> int:
    """Pillow stretches grey PNGs of 2 and 4 bits to 0..255, index 1 to 85 or 17: by how much."""
    grey = data.startswith(b"\x89PNG") and len(data) > 25 and data[25] == 0
    return {2: 85, 4: 17}.get(data[24], 1) if grey else 1
