"""Images in a column of a Parquet file: bytes, or the structure `{bytes, path}` of Hugging Face datasets.

A row group is the least that can be read of a column. The last few are kept, so that images that are asked for one
after another cost one reading.
"""

from __future__ import annotations

import contextlib
import json
import threading
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import IO, Any

from vitrail.errors import VitrailError
from vitrail.images.stored_image import StoredImage
from vitrail.images.unreadable import UnreadableImage
from vitrail.storage import Missing, ask_store, open_file
from vitrail.text import shown

MOST_GROUP = 1 << 30  # bytes of a row group's images, unpacked: a larger one is not read
KEPT = 2  # row groups in memory, at least
_IMAGE_NAMES = ("image", "img", "jpg", "jpeg", "png", "webp", "bytes", "image_bytes", "content")
_LABEL_NAMES = ("label", "cls", "class", "fine_label", "labels")
_ROWS_BEYOND = 1_000_000  # rows that a file may claim beyond one for each of its bytes


@dataclass(frozen=True)
class ParquetImages:
    """What a Parquet file holds of images, by its footer."""

    column: str
    groups: tuple[int, ...]  # rows of each row group
    label: str | None = None
    names: tuple[str, ...] = ()  # of the labels, where these are numbers


def require_pyarrow() -> Any:
    """`pyarrow` with its `parquet`; a sentence where it is not installed."""
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError:
        raise VitrailError("a manifest needs one more package: pip install 'vitrail[tables]'") from None
    return pyarrow


def images_of_parquet(file: IO[bytes], size: int) -> ParquetImages | None:
    """The column of images; None where there is none. VitrailError where the file cannot be read or is too much."""
    with _as_sentences(), require_pyarrow().parquet.ParquetFile(file) as parquet:
        schema, metadata = parquet.schema_arrow, parquet.metadata
        column = _image_column(schema)
        if column is None:
            return None
        if metadata.num_rows > _ROWS_BEYOND + size:
            raise VitrailError(f"claims {metadata.num_rows:,} rows in {size:,} bytes")
        groups = []
        for index in range(metadata.num_row_groups):
            group = metadata.row_group(index)
            chunks = [group.column(place) for place in range(group.num_columns)]
            bytes_of_images = sum(
                one.total_uncompressed_size for one in chunks if one.path_in_schema.split(".")[0] == column
            )
            if bytes_of_images > MOST_GROUP:
                raise VitrailError(
                    f"has a row group of {bytes_of_images:,} bytes, and to read one image all of it must be read: "
                    "write it again with row groups of a hundred images"
                )
            groups.append(group.num_rows)
        label = next((name for name in _LABEL_NAMES if name in schema.names and _is_label(schema.field(name))), None)
        return ParquetImages(column, tuple(groups), label, _class_names(schema, label))


def labels_of_group(parquet: Any, images: ParquetImages, group: int) -> Iterator[str | None]:
    """The label of each row of a row group, in words; `parquet` is pyarrow's ParquetFile."""
    if images.label is None:
        yield from (None for _ in range(images.groups[group]))
        return
    for batch in parquet.iter_batches(10_000, row_groups=[group], columns=[images.label]):
        for value in batch.column(0).to_pylist():
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
    with open_file(path) as file, _as_sentences(), require_pyarrow().parquet.ParquetFile(file) as parquet:
        if group >= parquet.metadata.num_row_groups or column not in parquet.schema_arrow.names:
            raise VitrailError("has changed since the manifest was made: make it again")
        return parquet.read_row_group(group, columns=[column]).column(column)


@contextlib.contextmanager
def _as_sentences() -> Iterator[None]:
    """What pyarrow says of a damaged file; what a disk or a store says goes on."""
    arrow = require_pyarrow()
    try:
        yield
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
