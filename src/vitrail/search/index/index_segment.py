"""One segment of an index, open to read, and how segments are written."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vitrail.errors import VitrailError
from vitrail.files import map_array, replacing
from vitrail.search.embeddings import Vectors
from vitrail.search.index.index_manifest import SegmentEntry
from vitrail.search.vector_file import (
    VectorFacts,
    import_pyarrow,
    open_vectors,
    read_columns,
    vectors_of,
    writing_vectors,
)

ROWS = 8192  # of a row group that is copied


@dataclass(frozen=True)
class Segment:
    """Rows of an index. All of it is opened at once, so that it stays whole when a writer deletes the files."""

    ids: NDArray[np.int64]  # (n,), ascending
    paths: Any  # Arrow array of strings, (n,)
    digests: Any
    vectors: Vectors  # (n, D), memory-mapped

    def __len__(self) -> int:
        return len(self.ids)


def open_segment(folder: Path, entry: SegmentEntry, facts: VectorFacts) -> Segment:
    """The segment's rows; its array is made again from the Parquet file where it is missing."""
    where = entry.parquet(folder)
    table = read_columns(where, ["id", "path", "digest"])
    if len(table) != entry.rows:
        raise VitrailError(f"{where} has {len(table)} rows, not {entry.rows}: make the index again")
    ids, paths, digests = (table.column(name).combine_chunks() for name in ("id", "path", "digest"))
    numbers: NDArray[np.int64] = ids.to_numpy(zero_copy_only=False)
    holes = ids.null_count + paths.null_count + digests.null_count
    if holes or (np.diff(numbers) <= 0).any() or (len(numbers) and numbers[0] < 0):
        raise VitrailError(f"{where} has rows without an id, a path or a digest, or in no order: make the index again")
    return Segment(numbers, paths, digests, _open_array(folder, entry, facts))


def _open_array(folder: Path, entry: SegmentEntry, facts: VectorFacts) -> Vectors:
    vectors = map_array(entry.array(folder))
    if vectors is not None and vectors.shape == (entry.rows, facts.width) and vectors.dtype == np.float32:
        return vectors
    table = read_columns(entry.parquet(folder), ["vector"])
    if table.column("vector").null_count or table.schema.field("vector").type.list_size != facts.width:
        raise VitrailError(f"{entry.parquet(folder)} has other vectors than the index: make the index again")
    with contextlib.suppress(VitrailError):  # a folder that cannot be written
        write_array(folder, entry, facts)
        written: Vectors = map_array(entry.array(folder))
        return written
    return vectors_of(table, facts)


def write_segment(
    folder: Path, entry: SegmentEntry, facts: VectorFacts, older: Iterable[tuple[Path, NDArray[np.int64]]], new: Any
) -> None:
    """Older files without the ids that are removed, then the new rows, as one segment. new: an Arrow table."""
    pa = import_pyarrow()
    with replacing(entry.parquet(folder)) as temporary, writing_vectors(temporary, facts) as writer:
        for path, removed in older:
            with open_vectors(path) as file:
                for batch in file.iter_batches(ROWS):
                    table = pa.Table.from_batches([batch])
                    live = ~np.isin(batch.column("id").to_numpy(), removed)
                    writer.write_table(table if live.all() else table.filter(pa.array(live)))
        if len(new):
            writer.write_table(new)
    write_array(folder, entry, facts)


def write_array(folder: Path, entry: SegmentEntry, facts: VectorFacts) -> None:
    """The vectors of a segment's Parquet file as an array."""
    with replacing(entry.array(folder)) as temporary, open_vectors(entry.parquet(folder)) as file:
        if not entry.rows:
            with temporary.open("wb") as empty:
                np.save(empty, np.empty((0, facts.width), np.float32))
            return
        array = np.lib.format.open_memmap(temporary, "w+", np.float32, (entry.rows, facts.width))
        start = 0
        for batch in file.iter_batches(ROWS, columns=["vector"]):
            part = vectors_of(import_pyarrow().Table.from_batches([batch]), facts)
            array[start : start + len(part)] = part
            start += len(part)
        array.flush()


def swallowed(segments: Sequence[SegmentEntry], rows: int) -> int:
    """How many of the last segments a new one of so many rows takes into itself: those that are not twice as large as
    all after them. So there are few segments, and a row is copied few times, however rows come."""
    count = 0
    for segment in reversed(segments):
        if segment.rows > 2 * rows:
            break
        rows += segment.rows
        count += 1
    return count
