"""How many precincts a JPEG 2000 image is divided into: a decoder allocates each of them before it reads a pixel.

ISO 15444-1, annex A (markers) and B.6 (precincts). Of a codestream that cannot be followed the decoder says what is
wrong with it.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass

SIGNATURES = (b"\xff\x4f\xff\x51", b"\0\0\0\x0cjP  \r\n\x87\n")
_SIZ, _COD, _COC, _SOT, _SOD = 0xFF51, 0xFF52, 0xFF53, 0xFF90, 0xFF93


@dataclass(frozen=True)
class Precincts:
    """Upper bounds: every tile and component is taken to have the smallest precincts of all."""

    precincts: int
    layers: int
    resolutions: int
    pixels: int

    @property
    def packets(self) -> int:
        """For each of which a decoder notes whether it was read: for all layers of all precincts of all resolutions."""
        return self.precincts * self.layers * self.resolutions


def precincts_of(data: bytes) -> Precincts | None:
    """What the headers claim; None where they cannot be followed."""
    try:
        segments = list(_segments(data, _codestream(data)))
        siz = next(part for marker, part in segments if marker == _SIZ)
        width, height, left, top, tile_width, tile_height, tiles_left, tiles_top = struct.unpack_from(">8I", siz, 2)
        (components,) = struct.unpack_from(">H", siz, 34)
        columns = -(-(width - tiles_left) // tile_width)
        rows = -(-(height - tiles_top) // tile_height)
        area = min(tile_width, width - left), min(tile_height, height - top)
        styles = [_precinct_sizes(part, marker == _COD, components) for marker, part in segments if marker != _SIZ]
        precincts = max((_count(area, sizes) for sizes in styles), default=0) * components * columns * rows
        layers = max((struct.unpack_from(">H", part, 2)[0] for marker, part in segments if marker == _COD), default=1)
        resolutions = max((len(sizes) for sizes in styles), default=1)
        return Precincts(precincts, layers, resolutions, (width - left) * (height - top))
    except (struct.error, StopIteration, ZeroDivisionError, IndexError, OverflowError):
        return None


def _codestream(data: bytes) -> int:
    """Where the codestream begins: at once, or in the box jp2c."""
    position = 0
    if data.startswith(SIGNATURES[0]):
        return position
    while True:
        length, kind = struct.unpack_from(">I4s", data, position)
        header = 8
        if length == 1:
            (length,) = struct.unpack_from(">Q", data, position + 8)
            header = 16
        if kind == b"jp2c":
            return position + header
        if length < header:  # 0: to the end of the file
            raise struct.error("there is no codestream")
        position += length


def _segments(data: bytes, position: int) -> Iterator[tuple[int, bytes]]:
    """SIZ, and COD and COC of the main header and of every tile-part."""
    position += 2
    tile_part = 0  # where the current one ends
    while position + 4 <= len(data):
        marker, length = struct.unpack_from(">HH", data, position)
        if marker == _SOT:
            (size,) = struct.unpack_from(">I", data, position + 6)
            tile_part = position + size if size >= 12 else len(data)
        elif marker == _SOD:
            if tile_part <= position:  # of no tile-part, or of one that is over
                return
            position = tile_part
            continue
        elif marker in (_SIZ, _COD, _COC):
            yield marker, data[position + 4 : position + 2 + length]
        if marker < 0xFF00 or length < 2:
            return
        position += 2 + length


def _precinct_sizes(part: bytes, is_default: bool, components: int) -> list[tuple[int, int]]:
    """(log2 of width, of height) for each resolution, the smallest first; the largest there is where none is said."""
    component_bytes = 0 if is_default else (1 if components < 257 else 2)
    user_defined = part[component_bytes] & 1
    parameters = part[5:] if is_default else part[component_bytes + 1 :]  # levels, code-block size and so on
    levels = parameters[0]
    if not user_defined:
        return [(15, 15)] * (levels + 1)
    return [(byte & 15, byte >> 4) for byte in parameters[5 : 6 + levels]]


def _count(area: tuple[int, int], sizes: list[tuple[int, int]]) -> int:
    """Of one component of a tile, (width, height)."""
    total = 0
    for index, (wide, high) in enumerate(sizes):
        shrunk = 1 << (len(sizes) - 1 - index)
        columns, rows = (-(-side // shrunk) for side in area)
        total += (-(-columns // (1 << wide)) + 1) * (-(-rows // (1 << high)) + 1)  # + 1: they begin anywhere
    return total
