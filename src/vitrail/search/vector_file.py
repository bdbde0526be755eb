"""Vectors in Parquet: a row an image, with its id, path, content digest, vector and error, and what made them.

Columns: id int64, path string, digest string (BLAKE2b of the file's bytes), vector fixed_size_list<float>, error.
The schema's metadata has one entry, `vitrail`, which is the JSON of `VectorFacts`.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
from collections.abc import Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from vitrail import __version__
from vitrail.data.loading.split import digest
from vitrail.data.parquet_file import most_bytes, open_parquet, swells, unpacked_bytes
from vitrail.data.parquet_footer import UnsoundFooter, check_footer
from vitrail.errors import VitrailError
from vitrail.images.decode import read_file
from vitrail.images.unreadable import UnreadableImage
from vitrail.inference.prefetch import Pause, prefetch
from vitrail.search.embeddings import Embedder, Vectors
from vitrail.text import shown

FORMAT = 1
KEY = b"vitrail"


@dataclass(frozen=True)
class Row:
    """One image. vector: (D,), or (N D,) for patches; None where it could not be read, and `error` says why."""

    id: int
    path: str
    digest: str | None
    vector: Vectors | None
    error: str | None = None


@dataclass(frozen=True)
class VectorFacts:
    """What made the vectors of a file. Vectors of two fingerprints never mix."""

    fingerprint: str
    what: str
    normalise: bool
    width: int  # D
    grid: tuple[int, int] | None  # of patches: a row's vector is (h, w, D), row by row; None: it is (D,)
    model: str  # as it was called
    vitrail: str = __version__

    @property
    def numbers(self) -> int:
        """How many numbers a row's vector has."""
        return self.width if self.grid is None else self.grid[0] * self.grid[1] * self.width


def facts_of(embedder: Embedder, model: str) -> VectorFacts:
    """What a file of this embedder's vectors says of them."""
    grid = None
    if embedder.what == "patches":
        config = embedder.checkpoint.config.replace(image_size=embedder.checkpoint.preprocessing.size)
        grid = config.level_grid(config.levels[-1])
    return VectorFacts(embedder.fingerprint, embedder.what, embedder.normalise, embedder.width, grid, model)


def import_pyarrow() -> Any:
    """pyarrow with its Parquet module; VitrailError where it is not installed."""
    try:
        import pyarrow
        import pyarrow.compute
        import pyarrow.parquet
    except ImportError:
        raise VitrailError(
            "vectors are kept in Parquet files, which need one more package: pip install 'vitrail[search]'"
        ) from None
    return pyarrow


def schema_of(facts: VectorFacts) -> Any:
    """The Arrow schema of a file, facts included."""
    pa = import_pyarrow()
    fields = [
        pa.field("id", pa.int64(), nullable=False),
        pa.field("path", pa.string(), nullable=False),
        pa.field("digest", pa.string()),
        pa.field("vector", pa.list_(pa.float32(), facts.numbers)),
        pa.field("error", pa.string()),
    ]
    described = {"format": FORMAT, **dataclasses.asdict(facts)}
    return pa.schema(fields, metadata={KEY: json.dumps(described, sort_keys=True)})


def table_of(rows: Sequence[Row], facts: VectorFacts) -> Any:
    """Rows as an Arrow table."""
    pa = import_pyarrow()
    missing = [row.vector is None for row in rows]
    zeros = np.zeros(facts.numbers, np.float32)
    values = np.concatenate([zeros if row.vector is None else row.vector.reshape(-1) for row in rows] or [zeros[:0]])
    mask = pa.array(missing, pa.bool_()) if any(missing) else None
    columns = [
        pa.array([row.id for row in rows], pa.int64()),
        pa.array([row.path for row in rows], pa.string()),
        pa.array([row.digest for row in rows], pa.string()),
        pa.FixedSizeListArray.from_arrays(pa.array(values), facts.numbers, mask=mask),
        pa.array([row.error for row in rows], pa.string()),
    ]
    return pa.Table.from_arrays(columns, schema=schema_of(facts))


def rows_of(table: Any) -> Iterator[Row]:
    """The rows of an Arrow table, as `table_of` made it; vectors of patches are (N D,)."""
    column = table.column("vector").combine_chunks()
    vectors = iter(column.flatten().to_numpy(zero_copy_only=False).reshape(-1, column.type.list_size))
    columns = [table.column(name).to_pylist() for name in ("id", "path", "digest", "error")]
    for id_, path, hashed, error, valid in zip(*columns, column.is_valid().to_pylist(), strict=True):
        yield Row(id_, path, hashed, next(vectors) if valid else None, error)


@contextlib.contextmanager
def writing_vectors(path: Path, facts: VectorFacts) -> Iterator[Any]:
    """A ParquetWriter to a file; each table that it is given becomes a row group."""
    pa = import_pyarrow()
    # numbers that look random do not compress, and a dictionary of them is larger than they are
    with pa.parquet.ParquetWriter(path, schema_of(facts), compression="none", use_dictionary=False) as writer:
        yield writer


def vectors_of(table: Any, facts: VectorFacts) -> Vectors:
    """(rows, D) of a table whose rows all have a vector; (rows, N D) for patches."""
    column = table.column("vector").combine_chunks()
    flat = column.flatten()  # without what is null
    vectors: Vectors = flat.to_numpy(zero_copy_only=False).reshape(-1, facts.numbers)
    return vectors


def open_vectors(path: Path) -> Any:
    """A Parquet file of ours, open to read; VitrailError where it is none, or unpacks beyond measure."""
    pa = import_pyarrow()
    if path.exists() and not path.is_file():
        raise VitrailError(f"{shown(path)} is not a file")
    try:
        file = pa.parquet.ParquetFile(path)
        try:
            check_footer(path, file.metadata)
            _check_columns(path, file)
        except BaseException:
            file.close()
            raise
    except FileNotFoundError:
        raise VitrailError(f"{shown(path)} does not exist") from None
    except UnsoundFooter as error:
        raise VitrailError(f"{shown(path)} {error}") from None
    except (OSError, UnicodeDecodeError, pa.ArrowException) as error:
        raise VitrailError(f"cannot read {shown(path)}: {str(error).splitlines()[0]}") from None
    return file


def _check_columns(path: Path, file: Any) -> None:
    """Refuse other columns than ours, and values that repeat: ours are written out, so a file has as many bytes."""
    kinds, size = {field.name: field.type for field in file.schema_arrow}, path.stat().st_size
    texts = ("path", "digest", "error")
    found = [str(kinds.get(name)) for name in ("id", *texts)]
    vector: Any = kinds.get("vector")
    is_list = vector is not None and import_pyarrow().types.is_fixed_size_list(vector)
    if found != ["int64", "string", "string", "string"] or not is_list or str(vector.value_type) != "float":
        raise VitrailError(f"{shown(path)} holds no vectors that vitrail wrote: make it by `vitrail embed`")
    groups = [file.metadata.row_group(group) for group in range(file.metadata.num_row_groups)]
    chunks = [group.column(place) for group in groups for place in range(group.num_columns)]
    unpacked = sum(8 * chunk.num_values for chunk in chunks)
    swelling = any(swells(file.metadata, place) for place in range(file.metadata.num_columns))
    if not swelling and any("DICTIONARY" in encoding for chunk in chunks for encoding in chunk.encodings):
        with open_parquet(path) as repeated:
            unpacked += sum(map(unpacked_bytes, repeated.read(list(texts)).columns))
    if swelling or unpacked > most_bytes(size):
        raise VitrailError(f"{shown(path)} unpacks to far more than its {size:,} bytes: make it again")


def read_columns(path: Path, names: Sequence[str]) -> Any:
    """Columns of a file of ours as an Arrow table."""
    with open_vectors(path) as file:
        try:
            table = file.read(list(names))
            table.validate(full=True)  # that its text is UTF-8
            return table
        except (OSError, import_pyarrow().ArrowException) as error:
            raise VitrailError(f"cannot read {shown(path)}: {str(error).splitlines()[0]}") from None


def facts_of_json(values: dict[str, Any]) -> VectorFacts:
    """What a file says of its vectors; a ValueError, TypeError or KeyError where that makes no sense."""
    grid = values["grid"]
    facts = VectorFacts(**{**values, "grid": None if grid is None else tuple(grid)})
    sizes = [facts.width, *(facts.grid or ())]
    if any(type(size) is not int or not 0 < size < 1 << 31 for size in sizes) or len(sizes) not in (1, 3):
        raise ValueError(sizes)
    if not all(isinstance(text, str) for text in (facts.fingerprint, facts.what, facts.model)):
        raise ValueError(facts)
    return facts


def read_facts(path: Path) -> VectorFacts:
    """What a file says of its vectors; VitrailError for a file that is not one of ours."""
    with open_vectors(path) as file:
        metadata, vector = file.schema_arrow.metadata or {}, file.schema_arrow.field("vector").type
    try:
        values = json.loads(metadata[KEY])
        if values.pop("format") > FORMAT:
            raise VitrailError(f"{shown(path)} was written by a newer version of Vitrail: update Vitrail")
        facts = facts_of_json(values)
        if vector.list_size != facts.numbers:
            raise ValueError(vector)
    except VitrailError:
        raise
    except (KeyError, ValueError, TypeError, AttributeError, RecursionError):
        raise VitrailError(f"{shown(path)} holds no vectors that vitrail wrote: make it by `vitrail embed`") from None
    return facts


def read_vectors(path: str | Path) -> tuple[Vectors, list[str], VectorFacts]:
    """The vectors (n, D) of the images of a file that could be read, their paths, and what made them."""
    facts, pa = read_facts(Path(path)), import_pyarrow()
    table = read_columns(Path(path), ["path", "vector"])
    table = table.filter(pa.compute.is_valid(table.column("vector")))
    return vectors_of(table, facts), table.column("path").to_pylist(), facts


def recordable(path: str | Path) -> str | None:
    """A path as the text of a column, which is UTF-8; None for a name that is not."""
    text = os.fspath(path)
    try:
        text.encode()
    except UnicodeEncodeError:
        return None
    return text


def digests_ahead(
    paths: Iterable[str | Path | Pause], limit: int
) -> Generator[tuple[str | Path, str | UnreadableImage] | Pause, None, None]:
    """Each path with the digest of its file, read in a thread before it is needed; at most `limit` are ahead."""
    return prefetch(file_digest, paths, workers=1, limit=limit)


def file_digest(path: str | Path) -> str | UnreadableImage:
    """By which files of one content are known; the error of a file that cannot be opened."""
    try:
        return digest(read_file(Path(path))).hex()
    except UnreadableImage as error:
        return error
