"""Outputs as Parquet files of vectors (`search/vector_file.py`), with stamp, counts and a digest of all rows in the
footer."""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from vitrail.errors import VitrailError
from vitrail.shards.output_format import Counts, OutputFormat, Stamp
from vitrail.storage import Missing, Unavailable, open_file
from vitrail.text import shown

if TYPE_CHECKING:
    from vitrail.search.vector_file import Row

KEY = b"vitrail_shard"
FORMAT = 1
_WITHOUT_VECTORS = ("id", "path", "digest", "error")


class VectorShards(OutputFormat):
    """Vectors in Parquet."""

    ending = ".parquet"

    @staticmethod
    @contextlib.contextmanager
    def writing(path: Path, facts: Any, stamp: Stamp) -> Iterator[VectorRows]:
        """Rows to add; the footer is written with the file's end. `facts`: what makes the vectors, `VectorFacts`."""
        from vitrail.search.vector_file import writing_vectors

        with writing_vectors(path, facts) as writer:
            rows = VectorRows(writer)
            yield rows
            writer.add_key_value_metadata({KEY: rows.footer(stamp)})

    def counts(self, path: str, stamp: Stamp) -> Counts | None:
        """From the footer, without which a Parquet file cannot be opened."""
        with _opened(path) as file:
            footer = None if file is None else _footer(file, stamp)
        return None if footer is None else Counts(footer["images"], footer["errors"])

    def merge(self, files: Iterable[tuple[str, Stamp]], out: Path) -> Counts:
        """One file whose row groups are those of the shards."""
        images = errors = 0
        with contextlib.ExitStack() as stack:
            writer = None
            for path, stamp in files:
                with _whole(path, stamp) as (file, footer):
                    if writer is None:
                        writer = stack.enter_context(_like(file, out))
                    for table in _tables(file, footer, path):
                        writer.write_table(table)
                images += footer["images"]
                errors += footer["errors"]
        return Counts(images, errors)

    def rows(self, path: str, stamp: Stamp) -> list[Row]:
        """The rows of a shard, every byte of them checked."""
        from vitrail.search.vector_file import rows_of

        with _whole(path, stamp) as (file, footer):
            tables = list(_tables(file, footer, path))
        return [row for table in tables for row in rows_of(table)]


class VectorRows:
    """The tables of a file as they are written."""

    def __init__(self, writer: Any) -> None:
        self._writer, self._sha = writer, hashlib.sha256()
        self.images = self.errors = 0

    def add(self, table: Any) -> None:
        """A table of rows, which becomes a row group."""
        self._writer.write_table(table)
        _hash(self._sha, table)
        self.images += len(table)
        self.errors += len(table) - table.column("error").null_count

    @property
    def counts(self) -> Counts:
        """What was written so far."""
        return Counts(self.images, self.errors)

    def footer(self, stamp: Stamp) -> str:
        """What is kept in the file's metadata."""
        about = {"format": FORMAT, "job": stamp.job, "shard": stamp.shard, "images": self.images}
        return json.dumps(about | {"errors": self.errors, "sha256": self._sha.hexdigest()})


def _hash(sha: Any, table: Any) -> None:
    """Every value of the rows; a vector that is none is zeros in the file."""
    import numpy as np

    columns = [table.column(name).to_pylist() for name in _WITHOUT_VECTORS]
    sha.update(json.dumps(columns).encode())
    valid = table.column("vector").combine_chunks().is_valid().to_numpy(zero_copy_only=False)
    flat = table.column("vector").combine_chunks().flatten().to_numpy(zero_copy_only=False)
    sha.update(np.packbits(valid).tobytes())
    sha.update(np.ascontiguousarray(flat).tobytes())


@contextlib.contextmanager
def _whole(path: str, stamp: Stamp) -> Iterator[tuple[Any, dict[str, Any]]]:
    """pyarrow's ParquetFile and its footer; VitrailError where it is not the whole output of this shard."""
    with _opened(path) as file:
        footer = None if file is None else _footer(file, stamp)
        if file is None or footer is None:
            raise _damaged(path)
        yield file, footer


def _tables(file: Any, footer: dict[str, Any], path: str) -> Iterator[Any]:
    """Its row groups; VitrailError at the end where they are not what was written."""
    sha = hashlib.sha256()
    for group in range(file.metadata.num_row_groups):
        table = file.read_row_group(group)
        _hash(sha, table)
        yield table
    if sha.hexdigest() != footer["sha256"]:
        raise _damaged(path)


def _damaged(path: str) -> VitrailError:
    return VitrailError(f"{shown(path)} is damaged: remove it and run the same command again")


def _like(file: Any, out: Path) -> Any:
    """A writer of the same columns and facts."""
    from vitrail.search.vector_file import import_pyarrow

    arrow = import_pyarrow()
    schema = file.schema_arrow
    metadata = {key: value for key, value in (schema.metadata or {}).items() if key != KEY}
    return arrow.parquet.ParquetWriter(out, schema.with_metadata(metadata), compression="none", use_dictionary=False)


@contextlib.contextmanager
def _opened(path: str) -> Iterator[Any]:
    """pyarrow's ParquetFile; None where the file is not there, or is not whole."""
    from vitrail.search.vector_file import import_pyarrow

    arrow = import_pyarrow()
    try:
        stream: IO[bytes] = open_file(path)
    except Missing:
        yield None
        return
    with stream:
        try:
            file = arrow.parquet.ParquetFile(stream)
        except Unavailable:
            raise
        except (arrow.ArrowException, OSError):
            yield None
            return
        with file:
            yield file


def _footer(file: Any, stamp: Stamp) -> dict[str, Any] | None:
    try:
        footer: dict[str, Any] = json.loads((file.metadata.metadata or {})[KEY])
        fits = (footer["format"], footer["job"], footer["shard"]) == (FORMAT, stamp.job, stamp.shard)
        whole = footer["images"] == file.metadata.num_rows and type(footer["errors"]) is int
        return footer if fits and whole and isinstance(footer["sha256"], str) else None
    except (KeyError, TypeError, ValueError, RecursionError):
        return None
