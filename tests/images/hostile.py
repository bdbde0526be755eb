"""Small files that claim, or cost, far more than their size, written byte by byte: no library would write them."""

from __future__ import annotations

import functools
import io
import struct
import zlib
from collections.abc import Sequence

from PIL import Image

Field = tuple[int, Sequence[int]]  # a TIFF tag and its values


def tiff(*pages: Sequence[Field], data: bytes = b"") -> bytes:
    """A little-endian TIFF of these pages, with this data at byte 8. All values are LONG."""
    out = bytearray(struct.pack("<2sHI", b"II", 42, 0) + data + b"\0" * (len(data) % 2))
    pointer = 4  # where the offset of the next directory is written
    for fields in pages:
        outside = {}
        for tag, values in fields:
            if len(values) > 1:
                outside[tag] = len(out)
                out += struct.pack(f"<{len(values)}I", *values)
        struct.pack_into("<I", out, pointer, len(out))
        out += struct.pack("<H", len(fields))
        for tag, values in sorted(fields, key=lambda field: field[0]):
            out += struct.pack("<HHII", tag, 4, len(values), outside[tag] if len(values) > 1 else values[0])
        pointer = len(out)
        out += struct.pack("<I", 0)
    return bytes(out)


def grey(width: int, height: int, *more: Field, compression: int = 1, samples: int = 1) -> list[Field]:
    """The fields of a page of grey bytes; `more` says where its pixels are."""
    bits = (258, [8] * samples)
    return [(256, [width]), (257, [height]), bits, (259, [compression]), (262, [1]), (277, [samples]), *more]


@functools.cache  # to compress 256 MB takes most of a second
def tiff_of_one_tile(size: int = 64, tile: int = 16_000) -> bytes:
    """A picture of this size in one tile that is much larger, of zeros."""
    pixels = zlib.compress(b"\0" * (tile * tile))
    place = [(322, [tile]), (323, [tile]), (324, [8]), (325, [len(pixels)])]
    return tiff(grey(size, size, *place, compression=8), data=pixels)


def tiff_of_one_tile_in_disguise(kind: int) -> bytes:
    """The same; the sides of its tile are of this type: 9, signed, or 16, of 64 bits, which lie outside the entry."""
    data = bytearray(tiff_of_one_tile())
    for tag in (322, 323):
        entry = data.rindex(struct.pack("<HHI", tag, 4, 1))
        struct.pack_into("<HH", data, entry, tag, kind)
        if kind == 16:
            struct.pack_into("<I", data, entry + 8, len(data))
    return bytes(data) + struct.pack("<Q", 16_000)


def tiff_of_two_tile_sizes(*sizes: int) -> bytes:
    """It gives the sides of its tiles more than once. Libraries differ in which they take."""
    pixels = zlib.compress(b"\0" * 16_000**2)
    place = [*((tag, [size]) for tag in (322, 323) for size in sizes), (324, [8]), (325, [len(pixels)])]
    return tiff(grey(64, 64, *place, compression=8), data=pixels)


def tiff_of_small_tiles(side: int = 640) -> bytes:
    """Tiles of 1 x 1 pixel, all in the same byte."""
    count = side * side
    return tiff(grey(side, side, (322, [1]), (323, [1]), (324, [8] * count), (325, [1] * count)), data=b"\x80\0")


def tiff_of_size(width: int, height: int) -> bytes:
    return tiff(grey(width, height, (273, [8]), (278, [1]), (279, [4])), data=b"\0" * 4)


def tiff_of_samples(size: int, samples: int) -> bytes:
    """One page that claims so many channels."""
    return tiff(grey(size, size, (273, [8]), (279, [4]), samples=samples), data=b"\0" * 4)


def ome_tiff(planes: int = 100_000_000, size: int = 8, samples: int = 5) -> bytes:
    """A page of five samples, which Pillow does not know, and a description that promises a hundred million planes."""
    xml = (
        '<?xml version="1.0"?><OME xmlns="http://www.openmicroscopy.org/Schemas/OME/2016-06"><Image ID="Image:0">'
        f'<Pixels ID="Pixels:0" DimensionOrder="XYCZT" Type="uint8" SizeX="{size}" SizeY="{size}" SizeC="{samples}" '
        f'SizeZ="{planes}" SizeT="1"><TiffData IFD="0" PlaneCount="{planes}"/></Pixels></Image></OME>'
    ).encode() + b"\0"
    pixels = bytes(range(size * size)) * samples
    data = pixels + xml
    fields = grey(size, size, (273, [8]), (278, [size]), (279, [len(pixels)]), samples=samples)
    fields = [*fields, (338, [0] * (samples - 1)), (284, [1])]
    described = tiff([*fields, (270, [8 + len(pixels)] * len(xml))], data=data)
    # ImageDescription is ASCII (type 2) and lies where the data is; `tiff` wrote LONGs
    entry = described.index(struct.pack("<HHI", 270, 4, len(xml)))
    return described[:entry] + struct.pack("<HHII", 270, 2, len(xml), 8 + len(pixels)) + described[entry + 12 :]


def png(width: int, height: int, data: bytes = b"", mode: int = 2) -> bytes:
    """A PNG whose header says so, with these compressed pixels. mode: 2 is colour, 0 is grey."""
    head = struct.pack(">IIBBBBB", width, height, 8, mode, 0, 0, 0)
    chunks = [(b"IHDR", head), (b"IDAT", data), (b"IEND", b"")]
    parts = [struct.pack(">I", len(d)) + n + d + struct.pack(">I", zlib.crc32(n + d)) for n, d in chunks]
    return b"\x89PNG\r\n\x1a\n" + b"".join(parts)


def png_strip(width: int = 49_000_000) -> bytes:
    """One row, all of it there: 48 kB for 49 million grey pixels."""
    return png(width, 1, zlib.compress(b"\0" * (width + 1), 9), mode=0)


@functools.cache
def jpeg_of_scans(side: int = 7000, scans: int = 200, mode: str = "RGB") -> bytes:
    """A progressive JPEG of one colour with as many scans as are taken. Each costs a pass over all pixels."""
    buffer = io.BytesIO()
    Image.new(mode, (side, side), "teal").save(buffer, "JPEG", progressive=True)
    data = buffer.getvalue()
    last = data[data.rindex(b"\xff\xda") : -2]
    return data[:-2] + last * (scans - data.count(b"\xff\xda")) + data[-2:]


def jpeg2000(size: int = 2000, precinct: int = 1, components: int = 3, levels: int = 5, layers: int = 1) -> bytes:
    """A codestream of no pixels whose precincts have sides of 2 ** precinct."""
    siz = struct.pack(">HIIIIIIIIH", 0, size, size, 0, 0, size, size, 0, 0, components) + b"\x07\1\1" * components
    cod = struct.pack(">BBHBBBBBB", 1, 0, layers, 0, levels, 0, 0, 0, 1) + bytes([precinct * 0x11]) * (levels + 1)
    qcd = b"\x40" + b"\x48" * (3 * levels + 1)
    segments = [(0xFF51, siz), (0xFF52, cod), (0xFF5C, qcd)]
    head = b"\xff\x4f" + b"".join(struct.pack(">HH", marker, len(part) + 2) + part for marker, part in segments)
    tile = b"\xff\x93" + b"\0" * 64
    return head + struct.pack(">HHHIBB", 0xFF90, 10, 0, len(tile) + 12, 0, 1) + tile + b"\xff\xd9"


def jpeg2000_in_boxes(**options: int) -> bytes:
    """The same in a .jp2 file."""
    stream = jpeg2000(**options)
    size = options.get("size", 2000)
    ihdr = struct.pack(">I4sIIHBBBB", 22, b"ihdr", size, size, 3, 7, 7, 0, 0)
    colour = struct.pack(">I4sBBBI", 15, b"colr", 1, 0, 0, 16)
    header = struct.pack(">I4s", 8 + len(ihdr + colour), b"jp2h") + ihdr + colour
    start = b"\0\0\0\x0cjP  \r\n\x87\n" + struct.pack(">I4s4sI4s", 20, b"ftyp", b"jp2 ", 0, b"jp2 ")
    return start + header + struct.pack(">I4s", 8 + len(stream), b"jp2c") + stream


def qoi(width: int, height: int, data: bytes = b"") -> bytes:
    return b"qoif" + struct.pack(">IIBB", width, height, 3, 0) + data + b"\0" * 7 + b"\1"
