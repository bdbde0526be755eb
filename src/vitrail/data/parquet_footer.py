"""What a Parquet file's footer says of its columns, looked at before pyarrow is asked: where size statistics do not fit
the schema, a column is encrypted, or a row group has more columns than the schema, its metadata throw in C++, where
nothing catches it, and the process ends (pyarrow 26). A footer is one structure in Thrift's compact protocol."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

from vitrail.errors import VitrailError

_NUMBERS, _TEXT, _LISTS, _MAP, _STRUCT = (4, 5, 6), 8, (9, 10), 11, 12  # kinds of values; 1 and 2 are true and false
_ROW_GROUPS, _COLUMNS, _COLUMN, _CRYPTO, _SIZES = 4, 1, 3, 8, 16  # numbers of fields in parquet.thrift
_UNENCODED, _REPETITION, _DEFINITION = 1, 2, 3  # in the size statistics


class UnsoundFooter(VitrailError):
    """The sentence goes on after the file's name."""


def check_footer(source: Path | IO[bytes], metadata: Any) -> None:
    """UnsoundFooter where pyarrow's metadata of a column would end the process."""
    schema = [metadata.schema.column(place) for place in range(metadata.num_columns)]
    levels = tuple((one.max_repetition_level, one.max_definition_level, one.physical_type) for one in schema)
    if isinstance(source, Path):
        with source.open("rb") as file:
            footer = _footer(file)
    else:
        before = source.tell()
        footer = _footer(source)
        source.seek(before)
    if not _is_sound(footer, levels):
        raise UnsoundFooter("has a footer that contradicts itself, or columns that are encrypted: write it again")


def _footer(file: IO[bytes]) -> bytes:
    end = file.seek(0, 2)
    file.seek(max(0, end - 8))
    length = int.from_bytes(file.read(4), "little")
    file.seek(max(0, end - 8 - length))
    return file.read(length)


@functools.lru_cache(maxsize=16)  # of a file of many row groups every one is opened by itself
def _is_sound(footer: bytes, levels: tuple[tuple[int, int, str], ...]) -> bool:
    try:
        return all(_fits(group, levels) for group in _Reader(footer).row_groups())
    except (IndexError, RecursionError):
        return False


def _fits(group: list[dict[int, int] | None], levels: tuple[tuple[int, int, str], ...]) -> bool:
    if len(group) != len(levels):
        return False
    for sizes, (repetition, definition, kind) in zip(group, levels, strict=True):
        if sizes is None or (_UNENCODED in sizes and kind != "BYTE_ARRAY"):
            return False
        if sizes.get(_REPETITION, 0) not in (0, repetition + 1) or sizes.get(_DEFINITION, 0) not in (0, definition + 1):
            return False
    return True


class _Reader:
    """Walks over a footer that pyarrow has read, so that it has an end."""

    def __init__(self, data: bytes) -> None:
        self.data, self.at = data, 0

    def row_groups(self) -> Iterator[list[dict[int, int] | None]]:
        """Of each column of a row group the lengths of its size statistics; None: it is encrypted."""
        for field, kind in self._fields():
            if field == _ROW_GROUPS and kind in _LISTS:
                for _ in range(self._list()[0]):
                    yield self._row_group()
            else:
                self._skip(kind)

    def _row_group(self) -> list[dict[int, int] | None]:
        columns: list[dict[int, int] | None] = []
        for field, kind in self._fields():
            if field == _COLUMNS and kind in _LISTS:
                columns = [self._column() for _ in range(self._list()[0])]
            else:
                self._skip(kind)
        return columns

    def _column(self) -> dict[int, int] | None:
        sizes: dict[int, int] | None = {}
        for field, kind in self._fields():
            if field == _CRYPTO:
                sizes = None
            if field != _COLUMN or kind != _STRUCT:
                self._skip(kind)
                continue
            for inner, inner_kind in self._fields():
                if inner == _SIZES and inner_kind == _STRUCT:
                    found = self._sizes()
                    sizes = None if sizes is None else found
                else:
                    self._skip(inner_kind)
        return sizes

    def _sizes(self) -> dict[int, int]:
        sizes = {}
        for field, kind in self._fields():
            start = self.at
            sizes[field] = self._list()[0] if kind in _LISTS else 1
            self.at = start
            self._skip(kind)
        return sizes

    def _fields(self) -> Iterator[tuple[int, int]]:
        number = 0
        while head := self._byte():
            step, kind = head >> 4, head & 15
            number = number + step if step else _signed(self._number())
            yield number, kind

    def _list(self) -> tuple[int, int]:
        """How many values, and their kind."""
        head = self._byte()
        return (self._number() if head >> 4 == 15 else head >> 4), head & 15

    def _skip(self, kind: int) -> None:
        if kind in _NUMBERS:
            self._number()
        elif kind == _TEXT:
            length = self._number()  # which moves on by itself
            self.at += length
        elif kind in _LISTS:
            count, inner = self._list()
            self._skip_all(count, inner)
        elif kind == _MAP:
            if count := self._number():
                kinds = self._byte()
                for _ in range(count):
                    self._skip_all(1, kinds >> 4)
                    self._skip_all(1, kinds & 15)
        elif kind == _STRUCT:
            for _, inner in self._fields():
                self._skip(inner)
        elif kind not in (1, 2):
            self.at += {3: 1, 7: 8}.get(kind, len(self.data))

    def _skip_all(self, count: int, kind: int) -> None:
        for _ in range(count):
            if kind in (1, 2):  # in a list each takes a byte
                self.at += 1
            else:
                self._skip(kind)
            if self.at > len(self.data):
                raise IndexError

    def _number(self) -> int:
        value = shift = 0
        while True:
            byte = self._byte()
            value |= (byte & 127) << shift
            if byte < 128:
                return value
            shift += 7

    def _byte(self) -> int:
        self.at += 1
        return self.data[self.at - 1]


def _signed(value: int) -> int:
    return (value >> 1) ^ -(value & 1)
