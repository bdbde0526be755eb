"""One image of a manifest: where it lies, what it is called, and its label where the layout has one."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import astuple, dataclass, fields
from typing import Any

from vitrail.data.manifest.parquet_cells import ParquetCell
from vitrail.errors import VitrailError
from vitrail.images.stored_image import MOST_BYTES, StoredImage
from vitrail.images.unreadable import UnreadableImage
from vitrail.storage import join, read_bytes, read_range
from vitrail.text import shown

INSIDE = "::"  # between a file's name and what lies in it: train.tar::0001.jpg


@dataclass(frozen=True, slots=True)
class ManifestRow:
    """file: from the manifest's root on. Which of the others are there says what it is: none, a file of its own; offset
    and length, a member of a tar; column, group and row, a cell of a Parquet file; error, nothing that can be read."""

    file: str
    member: str | None = None  # its name in the tar, or its row in the Parquet file
    offset: int | None = None
    length: int | None = None
    column: str | None = None
    group: int | None = None  # row group
    row: int | None = None  # in it
    label: str | None = None
    split: str | None = None
    error: str | None = None

    @property
    def name(self) -> str:
        """What results and errors call it."""
        return self.file if self.member is None else f"{self.file}{INSIDE}{self.member}"

    def image(self, root: str) -> StoredImage:
        """The image, to be read by whoever decodes it."""
        path = join(root, self.file)
        if self.error is not None:
            return BrokenImage(self.name, self.error)
        if self.offset is not None:
            return TarImage(self.name, path, self.offset, self.length or 0)
        if self.column is not None:
            return ParquetCell(self.name, path, self.column, self.group or 0, self.row or 0)
        return FileImage(self.name, path)


@dataclass(frozen=True, slots=True)
class FileImage(StoredImage):
    """A file of its own."""

    path: str

    @property
    def holder(self) -> str:
        return self.path

    def fetch(self) -> bytes:
        return read_bytes(self.path)


@dataclass(frozen=True, slots=True)
class TarImage(StoredImage):
    """A member of a tar: so many bytes from an offset on."""

    path: str
    offset: int
    length: int

    @property
    def holder(self) -> str:
        return self.path

    def fetch(self) -> bytes:
        if self.length > MOST_BYTES:
            raise UnreadableImage(self.name, "too large", f"has {self.length:,} bytes: more than {MOST_BYTES:,}")
        data = read_range(self.path, self.offset, self.length)
        if len(data) < self.length:
            why = f"is truncated: {len(data):,} of its {self.length:,} bytes are in the tar"
            raise UnreadableImage(self.name, "truncated", why)
        return data


@dataclass(frozen=True, slots=True)
class BrokenImage(StoredImage):
    """What could not be listed: a damaged tar, a Parquet file without its end. It is an error row, not forgotten."""

    why: str

    def fetch(self) -> bytes:
        raise UnreadableImage(self.name, "damaged", self.why)


# ---- rows as the columns of a Parquet file

COLUMNS = tuple(field.name for field in fields(ManifestRow))
NUMBERS = ("offset", "length", "group", "row")
RAW = "raw_file"  # a file name that is no Unicode, byte by byte; `file` then shows it with escapes


def digest(rows: Iterable[ManifestRow]) -> str:
    """Of what the rows say, not of how a library writes them."""
    sha = hashlib.sha256()
    for row in rows:
        sha.update(json.dumps(astuple(row)).encode() + b"\n")
    return sha.hexdigest()


def to_columns(rows: Iterable[ManifestRow]) -> dict[str, list[Any]]:
    """A list a column."""
    columns: dict[str, list[Any]] = {name: [] for name in (*COLUMNS, RAW)}
    for row in rows:
        for name, value in zip(COLUMNS, astuple(row), strict=True):
            columns[name].append(value)
        raw = None
        if not row.file.isascii():
            columns["file"][-1] = row.file.encode("utf-8", "backslashreplace").decode()
            raw = os.fsencode(row.file) if columns["file"][-1] != row.file else None
        columns[RAW].append(raw)
    return columns


def from_columns(columns: Mapping[str, list[Any]], where: str) -> list[ManifestRow]:
    """What `to_columns` was given. `where`: what an error names."""
    rows = []
    for number, raw in enumerate(columns[RAW]):
        values = {name: columns[name][number] for name in COLUMNS}
        if raw is not None:
            values["file"] = os.fsdecode(raw)
        _check_inside(values["file"], where)
        if any(values[name] is not None and values[name] < 0 for name in NUMBERS):
            raise VitrailError(f"{shown(where)} is damaged: make the manifest again")
        rows.append(ManifestRow(**values))
    return rows


def _check_inside(file: Any, where: str) -> None:
    """A manifest that was made elsewhere names files below its root, and no others."""
    parts = str(file).split("/")
    if not isinstance(file, str) or "://" in file or file.startswith("/") or ".." in parts or "\0" in file:
        raise VitrailError(f"{shown(where)} names {shown(str(file))!r}, which is not below its root: make it again")
