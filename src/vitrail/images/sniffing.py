"""What the bytes of a file tell before any decoding: what it is, if not an image, and whether its end is there."""

from __future__ import annotations

from collections.abc import Collection

_HEIF = (b"heic", b"heix", b"heim", b"heis", b"mif1", b"msf1")
_AVIF = (b"avif", b"avis")
_STARTS = (b"\xff\xd8\xff", b"\x89PNG\r\n\x1a\n", b"GIF8", b"BM")
_FILL = 64  # zeros in a row that no compressed image ends with


def what_it_is(data: bytes, formats: Collection[str]) -> tuple[str, str]:
    """What a file is that Pillow, with these formats, does not know: (kind, why)."""
    start = data[:512].lstrip().lower()
    brand = data[8:12] if data[4:8] == b"ftyp" else b""
    if brand in _HEIF and "HEIF" not in formats:
        return "not an image", "is an HEIC image, which needs one more package: pip install pillow-heif"
    if brand in _AVIF and "AVIF" not in formats:
        return "not an image", "is an AVIF image, which needs Pillow 11.3 or newer: pip install --upgrade pillow"
    if start.startswith(b"version https://git-lfs"):
        return "not an image", "is a Git LFS pointer, not the image itself: run git lfs pull"
    if start.startswith((b"<!doctype html", b"<html", b"<?xml", b"<svg")):
        return "not an image", "is not an image: it is a web page or a drawing in XML"
    if not any(data[:4096]):
        return "truncated", "is truncated: it was never written, and holds zeros"
    if ends_early(data):
        return "truncated", "is truncated: its end is missing"
    if data.startswith((b"II*\0", b"MM\0*")):
        return (
            "damaged",
            "is a TIFF that cannot be read as 1, 3 or 4 channels: damaged, or of another number of channels",
        )
    if data.startswith(_STARTS) or data[8:12] == b"WEBP" or brand in _AVIF + _HEIF:
        return "damaged", "is damaged: it starts as an image, and there is none"
    return "not an image", "is not an image"


def ends_early(data: bytes) -> bool:
    """Whether a file seems to lack its end, and is worth decoding: a PNG may have all its pixels but no end mark."""
    if data.startswith(b"\xff\xd8\xff"):
        return data.find(b"\xff\xd9", _first_scan(data)) < 0
    if data.startswith(b"\x89PNG"):
        return b"IEND" not in data[-64:]
    if data[8:12] == b"WEBP":
        return int.from_bytes(data[4:8], "little") + 8 > len(data)
    if data.startswith((b"II*\0", b"MM\0*")):  # where its directory is: most programs write that last
        return int.from_bytes(data[4:8], "little" if data.startswith(b"II") else "big") >= len(data)
    return False


def filled_up(data: bytes) -> bool:
    """Whether a download stopped after its space was reserved: decoders take the zeros for pixels, without a word.

    JPEG: no end mark. WebP without EXIF behind the pixels, and AVIF: more zeros at the end than compressed pixels have.
    """
    if data.startswith(b"\xff\xd8\xff"):
        return ends_early(data)
    if data[8:16] in (b"WEBPVP8 ", b"WEBPVP8L") or (data[4:8] == b"ftyp" and data[8:12] in _AVIF):
        return not any(data[-_FILL:])
    return False


def _first_scan(data: bytes) -> int:
    """Where the pixels of a JPEG begin: past the EXIF block, whose thumbnail has an end mark of its own."""
    position = 2
    while position + 4 <= len(data) and data[position] == 0xFF:
        marker = data[position + 1]
        if marker == 0xDA:
            return position
        if marker == 0xFF:  # padding
            position += 1
        elif marker == 0x01 or 0xD0 <= marker <= 0xD8:  # markers without a length
            position += 2
        else:
            position += 2 + int.from_bytes(data[position + 2 : position + 4], "big")
    return position
