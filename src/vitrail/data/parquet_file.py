"""Parquet files in memory that goes with their size. A file has a value that repeats once, a table has it in each row:
half a kilobyte can unpack to gigabytes, and its footer says nothing of that. So texts and bytes are read as
dictionaries, and what they would be if they were written out is known before they are."""

from __future__ import annotations

from pathlib import Path
from typing import IO, Any

from vitrail.data.parquet_footer import UnsoundFooter, check_footer
from vitrail.errors import VitrailError

_AT_LEAST, _A_BYTE = 64_000_000, 200  # bytes that any file may take in memory, and more for each byte of it
_PREFIXES = "DELTA_BYTE_ARRAY"  # an encoding in which a value is the one before and some letters more
_WRITTEN_OUT = {_PREFIXES, "DELTA_LENGTH_BYTE_ARRAY"}  # those that pyarrow cannot read as dictionaries


class UnpacksTooMuch(UnsoundFooter):
    """The sentence goes on after the file's name."""


def require_pyarrow() -> Any:
    """`pyarrow` with its `parquet`; a sentence where it is not installed."""
    try:
        import pyarrow
        import pyarrow.compute
        import pyarrow.parquet
    except ImportError:
        raise VitrailError("a manifest needs one more package: pip install 'vitrail[tables]'") from None
    return pyarrow


def most_bytes(size: int) -> int:
    """What a file of `size` bytes may take in memory."""
    return _AT_LEAST + _A_BYTE * size


def open_parquet(source: Path | IO[bytes], only: str | None = None) -> Any:
    """pyarrow's ParquetFile, whose columns of texts and bytes are dictionaries, but for those that it cannot read so.
    only: the one column that will be read."""
    parquet = require_pyarrow().parquet
    metadata = parquet.read_metadata(source)
    check_footer(source, metadata)
    paths = [column.path for column in _leaves(metadata)]
    if len(set(paths)) < len(paths):
        raise UnpacksTooMuch("has two columns of one name: rename or remove one")
    texts = [
        column.path
        for place, column in enumerate(_leaves(metadata))
        if column.physical_type == "BYTE_ARRAY"
        and only in (None, column.path.split(".")[0])
        and not is_written_out(metadata, place)
    ]
    return parquet.ParquetFile(source, metadata=metadata, read_dictionary=texts)


def rows_at_once(file: Any, size: int, most: int) -> int:
    """How many rows, `most` at most, can be unpacked at a time, where some column is no dictionary. `file`: pyarrow's
    ParquetFile."""
    widest = written = 1
    for place, column in enumerate(_leaves(file.metadata)):
        swelling, chunks = swells(file.metadata, place), _chunks(file.metadata, place)
        for chunk in chunks:
            a_value = chunk.total_uncompressed_size if swelling else 0
            a_value = column.length if column.physical_type == "FIXED_LEN_BYTE_ARRAY" else a_value
            widest = max(widest, a_value * (chunk.num_values if column.max_repetition_level else 1))
        if is_written_out(file.metadata, place):
            written += sum(chunk.total_uncompressed_size for chunk in chunks)
    if written > most_bytes(size):
        raise UnpacksTooMuch(f"repeats long texts and unpacks to more than {most_bytes(size):,} bytes: save it as CSV")
    if widest > most_bytes(size):
        raise UnpacksTooMuch(f"may unpack to {widest:,} bytes a row: write it again without {_PREFIXES}")
    return max(1, min(most, _AT_LEAST // widest))


def is_written_out(metadata: Any, place: int) -> bool:
    """Whether a column of texts cannot be read as a dictionary."""
    return not _WRITTEN_OUT.isdisjoint(_encodings(metadata, place))


def swells(metadata: Any, place: int) -> bool:
    """Whether a column that is written out may have more bytes than the file says: values that grow from row to row, or
    that are dictionaries in other pages."""
    encodings = _encodings(metadata, place)
    repeats = _PREFIXES in encodings or any("DICTIONARY" in encoding for encoding in encodings)
    return repeats and not _WRITTEN_OUT.isdisjoint(encodings)


def unpacked_bytes(array: Any) -> int:
    """What an Arrow array takes with every value written out."""
    arrow = require_pyarrow()
    types, kind = arrow.types, array.type
    if isinstance(array, arrow.ChunkedArray):
        return sum(map(unpacked_bytes, array.chunks))
    if types.is_dictionary(kind) and not types.is_primitive(kind.value_type):
        lengths = arrow.compute.binary_length(array.dictionary).take(array.indices)
        return array.indices.nbytes + int(arrow.compute.sum(lengths).as_py() or 0)
    if types.is_map(kind):
        return unpacked_bytes(array.keys) + unpacked_bytes(array.items)
    if types.is_struct(kind):
        return sum(map(unpacked_bytes, array.flatten()))
    if types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind):
        return unpacked_bytes(array.flatten())
    return int(array.nbytes)


def values_of(array: Any) -> list[Any]:
    """All values of an Arrow array, each written out: a dictionary that is asked value by value takes ten times as
    long."""
    types = require_pyarrow().types
    values: list[Any] = (array.dictionary_decode() if types.is_dictionary(array.type) else array).to_pylist()
    return values


def _leaves(metadata: Any) -> list[Any]:
    return [metadata.schema.column(place) for place in range(metadata.num_columns)]


def _chunks(metadata: Any, place: int) -> list[Any]:
    """A column's parts in all row groups."""
    return [metadata.row_group(group).column(place) for group in range(metadata.num_row_groups)]


def _encodings(metadata: Any, place: int) -> set[str]:
    """Of all of a column's pages."""
    return {encoding for chunk in _chunks(metadata, place) for encoding in chunk.encodings}
