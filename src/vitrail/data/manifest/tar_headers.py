"""The members of a tar file by their headers: name, offset and length. Nothing is unpacked, and nothing is believed.

Python's `tarfile` keeps every member in memory and reads whatever length a header claims. This reads ustar, GNU long
names and pax headers, in constant memory, and stops with a sentence where the file is damaged.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import IO, NamedTuple

from vitrail.errors import VitrailError

BLOCK = 512
_MOST_HEADER = 1 << 20  # bytes of a long name or of a pax header
_MOST_NAME = 4096  # characters, of a path as systems have it: a manifest keeps the name of every image
_FILES = (b"0", b"\0", b"7")
_LONG_NAME, _LONG_LINK, _PAX, _PAX_GLOBAL = b"L", b"K", b"x", b"g"


class TarMember(NamedTuple):
    """One file in a tar."""

    name: str
    offset: int  # of its first byte
    length: int


def tar_members(file: IO[bytes], size: int) -> Iterator[TarMember]:
    """The regular files of a tar of `size` bytes, in order. VitrailError, which goes on after the file's name, where it
    is damaged; what came before it can be used."""
    position, name, length = 0, None, None  # the last two: what a header before this one says of it
    while position < size:
        header = _read(file, position, BLOCK)
        if len(header) < BLOCK:
            raise VitrailError(f"is truncated: it ends in a header, at byte {size:,}")
        if header.count(0) == BLOCK:
            return
        _check_sum(header, position)
        kind, claimed = header[156:157], _number(header[124:136], position)
        held = claimed if length is None else length
        start = position + BLOCK
        if start + held > size:
            raise VitrailError(
                f"is truncated: what begins at byte {start:,} has {held:,} bytes, and the file ends at {size:,}"
            )
        if kind in (_LONG_NAME, _LONG_LINK, _PAX, _PAX_GLOBAL):
            if claimed > _MOST_HEADER:
                raise VitrailError(f"is damaged: its header at byte {position:,} claims {claimed:,} bytes")
            if kind == _LONG_NAME:
                name = _text(_read(file, start, claimed))
            elif kind == _PAX:
                name, length = _pax(_read(file, start, claimed), name, position)
            position = start + _padded(claimed)
            continue
        if kind in _FILES and not (name or "").endswith("/"):
            called = name if name is not None else _short_name(header)
            if len(called) > _MOST_NAME:
                raise VitrailError(f"is damaged: the name at byte {position:,} has {len(called):,} characters")
            yield TarMember(called, start, held)
        position = start + (_padded(held) if kind in (*_FILES, b"S") else _padded(claimed))
        name = length = None


def _read(file: IO[bytes], offset: int, length: int) -> bytes:
    file.seek(offset)
    return file.read(length)


def _padded(length: int) -> int:
    return -(-length // BLOCK) * BLOCK


def _check_sum(header: bytes, position: int) -> None:
    """The sum of all bytes, with its own field as spaces; some old programs summed signed bytes."""
    rest = header[:148] + b" " * 8 + header[156:]
    unsigned = sum(rest)
    signed = unsigned - 256 * sum(byte > 127 for byte in rest)
    if _number(header[148:156], position) not in (unsigned, signed):
        raise VitrailError(f"is damaged, or no tar: the header at byte {position:,} does not have its checksum")


def _number(field: bytes, position: int) -> int:
    """Octal digits, or for large numbers base 256 after a first bit of 1."""
    try:
        if field[0] & 0x80:
            value = int.from_bytes(bytes([field[0] & 0x7F]) + field[1:], "big")
        else:
            value = int(field.partition(b"\0")[0].strip() or b"0", 8)
    except ValueError:
        value = -1
    if not 0 <= value < 1 << 60:
        raise VitrailError(f"is damaged, or no tar: the header at byte {position:,} holds no number where one belongs")
    return value


def _short_name(header: bytes) -> str:
    name = _text(header[:100])
    prefix = _text(header[345:500]) if header[257:263] == b"ustar\0" else ""
    return f"{prefix}/{name}" if prefix else name


def _text(data: bytes) -> str:
    return data.partition(b"\0")[0].decode("utf-8", "backslashreplace")


def _pax(data: bytes, name: str | None, position: int) -> tuple[str | None, int | None]:
    """Records of '20 path=the name\\n': the path and the size among them."""
    length, start, data = None, 0, data.rstrip(b"\0")
    while start < len(data):
        space = data.find(b" ", start, start + 8)
        number = data[start : max(space, start)]
        end = start + int(number) if number.isdigit() else 0
        record = data[space + 1 : end]
        if end <= space + 1 or not record.endswith(b"\n"):
            raise VitrailError(f"is damaged: the pax header at byte {position:,} makes no sense")
        key, _, value = record[:-1].partition(b"=")
        if key == b"path":
            name = value.decode("utf-8", "backslashreplace")
        elif key == b"size":
            if not value.isdigit() or len(value) > 18:
                raise VitrailError(f"is damaged: the pax header at byte {position:,} makes no sense")
            length = int(value)
        start = end
    return name, length
