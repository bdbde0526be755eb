"""Checks of an image file before it is opened or decoded: a small file can claim, and cost, enormous amounts.

Decoders trust width, height, tiles and planes, and allocate what they say. So these are looked at first.
"""

from __future__ import annotations

from vitrail.images.decode_limits import decode_limits
from vitrail.images.jpeg2000_header import SIGNATURES, precincts_of
from vitrail.images.tiff_header import tiff_pages
from vitrail.images.unreadable import UnreadableImage, too_large

MAX_SIDE = 1_000_000  # pixels; resizing takes up to 48 bytes for each pixel of a side
MAX_JPEG_SCANS = 200  # a progressive JPEG has about ten; each scan costs a pass over all pixels
MAX_TIFF_PAGES = 10_000
MAX_TIFF_PARTS = 100_000  # strips or tiles of a page
TILE_PIXELS = 2048 * 2048  # that a tile may have, however small the image is
MAX_PRECINCTS = 100_000  # of a JPEG 2000 image, and one more for each 256 pixels; each takes more than a kilobyte
MAX_PACKETS = 20_000_000  # of a JPEG 2000 image, and one more for each pixel; each takes two bytes

_TIFF = (b"II*\0", b"MM\0*", b"II+\0", b"MM\0+")


def check_file(data: bytes, name: str) -> None:
    """What can be told from the bytes alone, before a library opens the file. Raises UnreadableImage."""
    if data.startswith(_TIFF):
        _check_tiff(data, name)
    elif data.startswith(SIGNATURES):
        _check_jpeg2000(data, name)
    elif data.startswith(b"\xff\xd8\xff") and data.count(b"\xff\xda") > MAX_JPEG_SCANS:
        raise _costly(name, f"is a JPEG of more than {MAX_JPEG_SCANS} scans: save it again as an ordinary one")


def check_size(width: int, height: int, name: str) -> None:
    """The size that an image claims, or has. Raises UnreadableImage."""
    if width < 1 or height < 1:
        raise UnreadableImage(name, "damaged", f"is damaged: it has {width} x {height} pixels")
    if width * height > decode_limits().pixels:
        raise too_large(name)
    if max(width, height) > MAX_SIDE:
        raise _costly(name, f"is a strip of {width:,} x {height:,} pixels, longer than {MAX_SIDE:,}: cut it first")


def _check_tiff(data: bytes, name: str) -> None:
    directories = 0
    for number, page in enumerate(tiff_pages(data), start=1):
        if number > MAX_TIFF_PAGES:
            raise _costly(name, f"is a TIFF of more than {MAX_TIFF_PAGES:,} pages: give them as several files")
        directories += page.directory
        if directories > len(data):  # a small file can hold thousands of large ones, one inside the other
            raise UnreadableImage(name, "damaged", "is damaged: its directories overlap")
        if not page.is_clear:
            raise UnreadableImage(name, "damaged", "is damaged: a size is no whole number, or is there more than once")
        if page.parts > MAX_TIFF_PARTS:
            raise _costly(name, f"is a TIFF of {page.parts:,} strips or tiles: save it again with fewer")
        pixels = page.width * page.height
        if pixels * page.samples > 4 * decode_limits().pixels:
            raise too_large(name)
        if page.tile is not None and page.tile[0] * page.tile[1] > max(TILE_PIXELS, 4 * pixels):
            size, tile = f"{page.width:,} x {page.height:,}", f"{page.tile[1]:,} x {page.tile[0]:,}"
            raise _costly(name, f"is a TIFF of {size} pixels in tiles of {tile}: save it again")


def _check_jpeg2000(data: bytes, name: str) -> None:
    claimed = precincts_of(data)
    if claimed is None:
        return
    if claimed.precincts > MAX_PRECINCTS + claimed.pixels // 256:
        raise _costly(name, f"is a JPEG 2000 image of {claimed.precincts:,} precincts: save it again with larger ones")
    if claimed.packets > MAX_PACKETS + claimed.pixels:
        layers = f"{claimed.precincts:,} precincts in {claimed.layers:,} layers"
        raise _costly(name, f"is a JPEG 2000 image of {layers}: save it again with fewer")


def _costly(name: str, why: str) -> UnreadableImage:
    return UnreadableImage(name, "too large", why)
