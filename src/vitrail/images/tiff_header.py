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
_TAGS = {_WIDTH, _HEIGHT, _SAMPLES, _STRIP_OFFSETS, _TILE_WIDTH, _TILE_HEIGHT, _TILE_OFFSETS}
_FORMATS = {1: "B", 3: "H", 4: "I", 16: "Q"}  # types of whole numbers


@dataclass(frozen=True)
class TiffPage:
    width: int
    height: int
    samples: int
    tile: tuple[int, int] | None  # height, width
    parts: int  # strips or tiles
    directory: int = 0  # bytes of its entries


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


def _directory(data: bytes, offset: int, order: str, big: bool) -> tuple[dict[int, tuple[int, int]], int, int]:
    """By tag: (count, first value where it stands in the directory). Its bytes, and where the next directory is."""
    head, count_format, pointer = ("Q", "Q", "Q") if big else ("H", "I", "I")
    (entries,) = struct.unpack_from(order + head, data, offset)
    position, fields = offset + struct.calcsize(order + head), {}
    size = 20 if big else 12
    end = position + min(entries, (len(data) - position) // size) * size
    for place in range(position, end, size):
        tag, kind = struct.unpack_from(order + "HH", data, place)
        if tag not in _TAGS:
            continue
        (count,) = struct.unpack_from(order + count_format, data, place + 4)
        value = 0
        if kind in _FORMATS and (big or kind != 16):
            (value,) = struct.unpack_from(order + _FORMATS[kind], data, place + (12 if big else 8))
        fields[tag] = (count, value)
    is_whole = end == position + entries * size and end + struct.calcsize(order + pointer) <= len(data)
    following: int = struct.unpack_from(order + pointer, data, end)[0] if is_whole else 0
    return fields, end - position, following


def _page(fields: dict[int, tuple[int, int]], directory: int) -> TiffPage:
    def value(tag: int, default: int = 0) -> int:
        return fields.get(tag, (1, default))[1]

    tile = (value(_TILE_HEIGHT), value(_TILE_WIDTH)) if _TILE_WIDTH in fields or _TILE_HEIGHT in fields else None
    parts = max(fields.get(tag, (0, 0))[0] for tag in (_STRIP_OFFSETS, _TILE_OFFSETS))
    return TiffPage(value(_WIDTH), value(_HEIGHT), value(_SAMPLES, 1), tile, parts, directory)
