"""Images in a column of a Parquet file: bytes, or the structure `{bytes, path}` of Hugging Face datasets.

A row group is the least that can be read of a column. The last few are kept, so that images that are asked for one
after another cost one reading.
"""

from __future__ import annotations

import contextlib
import json
import os
import threading
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import IO, Any

from vitrail.data.parquet_file import (
    most_bytes,
    open_parquet,
    require_pyarrow,
    rows_at_once,
    swells,
    unpacked_bytes,
    values_of,
)
from vitrail.errors import VitrailError
from vitrail.images.stored_image import StoredImage
from vitrail.images.unreadable import UnreadableImage
from vitrail.storage import Missing, ask_store, open_file
from vitrail.text import shown

MOST_GROUP = 1 << 30  # bytes of a row group's images, unpacked: a larger one is not read
KEPT = 2  # row groups in memory, at least
_IMAGE_NAMES = ("image", "img", "jpg", "jpeg", "png", "webp", "bytes", "image_bytes", "content")
_LABEL_NAMES = ("label", "cls", "class", "fine_label", "labels")
_ROWS_BEYOND = 20_000  # rows that a file may claim beyond one for each of its bytes: each is a row of a manifest


@dataclass(frozen=True)
class ParquetImages:
    """What a Parquet file holds of images, by its footer."""

    column: str
    groups: tuple[int, ...]  # rows of each row group
    label: str | None = None
    names: tuple[str, ...] = ()  # of the labels, where these are numbers


def images_of_parquet(file: IO[bytes], size: int) -> ParquetImages | None:
    """The column of images; None where there is none. VitrailError where the file cannot be read or is too much."""
    with _as_sentences(), open_parquet(file) as parquet:
        metadata = parquet.metadata
        schema = metadata.schema.to_arrow_schema()
        column = _image_column(schema)
        if column is None:
            return None
        if metadata.num_rows > _ROWS_BEYOND + size:
            raise VitrailError(f"claims {metadata.num_rows:,} rows in {size:,} bytes")
        _check_encodings(metadata, column)
        groups = []
        for index in range(metadata.num_row_groups):
            _check_group(metadata.row_group(index), column, size)
            groups.append(metadata.row_group(index).num_rows)
        label = next((name for name in _LABEL_NAMES if name in schema.names and _is_label(schema.field(name))), None)
        return ParquetImages(column, tuple(groups), label, _class_names(parquet.schema_arrow, label))


def _check_group(group: Any, column: str, size: int) -> None:
    """Refuse a row group whose images cannot be unpacked in memory that goes with the size of the file."""
    chunks = [group.column(place) for place in range(group.num_columns)]
    chunks = [one for one in chunks if one.path_in_schema.split(".")[0] == column]
    unpacked = sum(one.total_uncompressed_size for one in chunks)
    if unpacked > min(MOST_GROUP, most_bytes(size)):
        raise VitrailError(
            f"has a row group of {unpacked:,} bytes, and to read one image all of it must be read: "
            "write it again with row groups of a hundred images"
        )


def _check_encodings(metadata: Any, column: str) -> None:
    places = [n for n in range(metadata.num_columns) if metadata.schema.column(n).path.split(".")[0] == column]
    if any(swells(metadata, place) for place in places):
        raise VitrailError(
            "has images as prefixes of one another, or only some of them as a dictionary (DELTA_BYTE_ARRAY, "
            "DELTA_LENGTH_BYTE_ARRAY): write it again without that"
        )


def labels_of(parquet: Any, images: ParquetImages, size: int) -> Iterator[str | None]:
    """The label of each row of a file, in words; `parquet` is pyarrow's ParquetFile, of `size` bytes."""
    if images.label is None:
        return
    rows = rows_at_once(parquet, size, 10_000)
    for batch in parquet.iter_batches(rows, columns=[images.label]):
        column = batch.column(0)
        fits = unpacked_bytes(column) <= most_bytes(size)
        for value in values_of(column) if fits else (one.as_py() for one in column):
            known = isinstance(value, int) and 0 <= value < len(images.names)
            yield images.names[value] if known else None if value is None else str(value)


@dataclass(frozen=True, slots=True)
class ParquetCell(StoredImage):
    """One cell of a column."""

    path: str
    column: str
    group: int
    row: int  # in the row group

    @property
    def holder(self) -> str:
        return self.path

    def fetch(self) -> bytes:
        try:
            values = _GROUPS.values(self.path, self.column, self.group)
            value = values[self.row].as_py()
        except (Missing, UnreadableImage):
            raise
        except (VitrailError, IndexError) as error:
            why = "is no longer in its file" if isinstance(error, IndexError) else f"lies in a file that {error}"
            raise UnreadableImage(self.name, "damaged", why) from None
        if isinstance(value, dict):
            value = value.get("bytes")
        if value is None:
            raise UnreadableImage(self.name, "empty", "is empty: its cell has no bytes")
        return bytes(value)


def keep_row_groups(images: int) -> None:
    """From now on as many row groups stay in memory as have so many images: whoever draws images in another order than
    theirs would read whole groups again and again. For the whole process."""
    _GROUPS.images = images


class _Groups:
    """Columns of row groups, the last few of them. One thread reads while the others wait for what it reads."""

    def __init__(self) -> None:
        self.images = 0  # of the groups that are kept, beyond the least number of groups
        self._kept: OrderedDict[tuple[str, str, int], Any] = OrderedDict()
        self._lock = threading.Lock()

    def values(self, path: str, column: str, group: int) -> Any:
        key = (path, column, group)
        with self._lock:
            if key not in self._kept:
                while len(self._kept) >= KEPT and sum(map(len, self._kept.values())) >= self.images:
                    self._kept.popitem(last=False)
                self._kept[key] = ask_store(path, lambda: _read_group(path, column, group))
            self._kept.move_to_end(key)
            return self._kept[key]


_GROUPS = _Groups()


def _read_group(path: str, column: str, group: int) -> Any:
    with open_file(path) as file, _as_sentences(), open_parquet(file, column) as parquet:
        metadata = parquet.metadata
        schema = metadata.schema.to_arrow_schema()
        known = column in schema.names and _holds_bytes(schema.field(column).type)
        if group >= metadata.num_row_groups or not known:
            raise VitrailError("has changed since the manifest was made: make it again")
        _check_encodings(metadata, column)
        _check_group(metadata.row_group(group), column, file.seek(0, os.SEEK_END))
        return parquet.read_row_group(group, columns=[column]).column(column)


@contextlib.contextmanager
def _as_sentences() -> Iterator[None]:
    """What pyarrow says of a damaged file; what a disk or a store says goes on."""
    arrow = require_pyarrow()
    try:
        yield
    except UnicodeDecodeError:
        raise VitrailError("has text that is not UTF-8") from None
    except arrow.ArrowException as error:
        raise VitrailError(f"cannot be read as Parquet: {_first_line(error)}") from None
    except OSError as error:
        if error.errno is not None:
            raise
        raise VitrailError(f"cannot be read as Parquet: {_first_line(error)}") from None


def _first_line(error: Exception) -> str:
    return shown(str(error).strip().splitlines()[0][:200]) if str(error).strip() else type(error).__name__


def _image_column(schema: Any) -> str | None:
    """The column of images: by its name, or the only one that holds bytes."""
    columns = [field.name for field in schema if _holds_bytes(field.type)]
    named = [name for name in _IMAGE_NAMES if name in columns]
    return named[0] if named else columns[0] if len(columns) == 1 else None


def _holds_bytes(kind: Any) -> bool:
    types = require_pyarrow().types
    if types.is_struct(kind):
        return any(inner.name == "bytes" and _holds_bytes(inner.type) for inner in kind)
    return bool(types.is_binary(kind) or types.is_large_binary(kind))


def _is_label(field: Any) -> bool:
    types, kind = require_pyarrow().types, field.type
    return bool(types.is_integer(kind) or types.is_string(kind) or types.is_large_string(kind))


def _class_names(schema: Any, label: str | None) -> tuple[str, ...]:
    """As Hugging Face datasets keep them beside a column of numbers."""
    try:
        about = json.loads((schema.metadata or {})[b"huggingface"])
        names = about["info"]["features"][label]["names"]
        return tuple(name for name in names if isinstance(name, str))
    except (KeyError, TypeError, ValueError, RecursionError):
        return ()
