"""What the directories of a TIFF claim, read without a library: both of ours build lists of all tiles when they open.

Only sizes are read. Of a directory that ends early what is there counts, as libraries take it; whoever decodes a
damaged TIFF says what is wrong with it.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass

_WIDTH, _HEIGHT, _SAMPLES = 256, 257, 277  # tags
_STRIP_OFFSETS, _TILE_WIDTH, _TILE_HEIGHT, _TILE_OFFSETS = 273, 322, 323, 324
_SIZES, _OFFSETS = {_WIDTH, _HEIGHT, _SAMPLES, _TILE_WIDTH, _TILE_HEIGHT}, {_STRIP_OFFSETS, _TILE_OFFSETS}
_FORMATS = {1: "B", 3: "H", 4: "I", 6: "b", 8: "h", 9: "i", 16: "Q", 17: "q"}  # types of whole numbers


@dataclass(frozen=True)
class TiffPage:
    width: int
    height: int
    samples: int
    tile: tuple[int, int] | None  # height, width
    parts: int  # strips or tiles
    directory: int = 0  # bytes of its entries
    is_clear: bool = True  # each size is a whole number, and there once: libraries differ in what else they take


def tiff_pages(data: bytes) -> Iterator[TiffPage]:
    """The pages of a TIFF or BigTIFF, as far as they can be read."""
    order = "<" if data[:2] == b"II" else ">"
    big = data[2:4] in (b"+\0", b"\0+")
    start, pointer = (8, "Q") if big else (4, "I")
    seen: set[int] = set()
    try:
        (offset,) = struct.unpack_from(order + pointer, data, start)
        while offset and offset not in seen:
            seen.add(offset)
            fields, size, offset = _directory(data, offset, order, big)
            yield _page(fields, size)
    except (struct.error, OverflowError):  # it ends early; 64 bits can point beyond every buffer
        return


def _directory(data: bytes, offset: int, order: str, big: bool) -> tuple[dict[int, int | None], int, int]:
    """By tag its value, of offsets their count; None where it is not clear. Its bytes, and where the next one is."""
    head, count_format, pointer = ("Q", "Q", "Q") if big else ("H", "I", "I")
    (entries,) = struct.unpack_from(order + head, data, offset)
    position, fields = offset + struct.calcsize(order + head), dict[int, int | None]()
    size = 20 if big else 12
    end = position + min(entries, (len(data) - position) // size) * size
    for place in range(position, end, size):
        (tag,) = struct.unpack_from(order + "H", data, place)
        if tag in _OFFSETS:
            value = struct.unpack_from(order + count_format, data, place + 4)[0]
        elif tag in _SIZES:
            value = _value(data, place, order, big)
        else:
            continue
        fields[tag] = value if fields.get(tag, value) == value else None
    is_whole = end == position + entries * size and end + struct.calcsize(order + pointer) <= len(data)
    following: int = struct.unpack_from(order + pointer, data, end)[0] if is_whole else 0
    return fields, end - position, following


def _value(data: bytes, place: int, order: str, big: bool) -> int | None:
    """The first value of an entry, which lies elsewhere if they do not fit; None where that is no size."""
    kind, count = struct.unpack_from(order + ("HQ" if big else "HI"), data, place + 2)
    if kind not in _FORMATS:
        return None
    room, here = (8, place + 12) if big else (4, place + 8)
    if count * struct.calcsize(_FORMATS[kind]) > room:
        (here,) = struct.unpack_from(order + ("Q" if big else "I"), data, here)
    try:
        value: int = struct.unpack_from(order + _FORMATS[kind], data, here)[0]
    except (struct.error, OverflowError):  # there is nothing
        return None
    return value if value >= 0 else None


def _page(fields: dict[int, int | None], directory: int) -> TiffPage:
    def value(tag: int, default: int = 0) -> int:
        return fields.get(tag, default) or 0

    tile = (value(_TILE_HEIGHT), value(_TILE_WIDTH)) if _TILE_WIDTH in fields or _TILE_HEIGHT in fields else None
    parts, is_clear = max(map(value, _OFFSETS)), None not in fields.values()
    return TiffPage(value(_WIDTH), value(_HEIGHT), value(_SAMPLES, 1), tile, parts, directory, is_clear)
