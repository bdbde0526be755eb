"""`vitrail embed`: one Parquet file of embeddings, made in parts so that a killed run goes on where it was.

A part is a Parquet file of some thousand rows in a folder beside the output; it is there as a whole or not at all. At
the end the parts become the row groups of the output, in one rename. A part has whole batches, so a run that goes on
computes the very batches of one that was never stopped.
"""

from __future__ import annotations

import contextlib
import itertools
import shutil
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from vitrail.errors import VitrailError
from vitrail.files import holding_lock, remove_unfinished, replacing
from vitrail.images.unreadable import UnreadableImage
from vitrail.inference.prefetch import Pause
from vitrail.search.embeddings import Embedder
from vitrail.search.vector_file import (
    Row,
    VectorFacts,
    digests_ahead,
    facts_of,
    file_digest,
    import_pyarrow,
    open_vectors,
    read_columns,
    read_facts,
    recordable,
    table_of,
    writing_vectors,
)
from vitrail.text import shown
from vitrail.threads import in_threads

PART_ROWS = 1024  # at least, in whole batches: what a kill can cost
PART_NUMBERS = 1 << 24  # at most, where a row is long: 64 MB in memory

ImagePath: TypeAlias = str | Path


@dataclass(frozen=True)
class EmbedSummary:
    """What `vitrail.embed` gives back."""

    path: Path
    images: int  # rows of the file
    unreadable: int
    kept: int  # rows that an earlier run had made


class PartFolder:
    """The parts of an output that is not finished."""

    def __init__(self, out: Path) -> None:
        self.out = out
        self.path = out.with_name(f".{out.name}.parts")

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Held by one process; the system releases it however that process ends."""
        busy = f"another process is writing {shown(self.out)}: choose another --out"
        with holding_lock(self.path / "lock", busy):
            remove_unfinished(self.path)
            try:
                yield
            finally:
                if not self.parts():
                    shutil.rmtree(self.path, ignore_errors=True)

    def part(self, number: int) -> Path:
        return self.path / f"part-{number:06d}.parquet"

    def parts(self) -> list[Path]:
        """Those that follow one another from the first."""
        return list(itertools.takewhile(Path.exists, map(self.part, itertools.count())))

    def write(self, number: int, rows: Sequence[Row], facts: VectorFacts) -> None:
        with replacing(self.part(number)) as temporary, writing_vectors(temporary, facts) as writer:
            writer.write_table(table_of(rows, facts))

    def forget_from(self, number: int) -> None:
        """Delete this part and all that follow: the last first, so that a kill leaves none behind a gap."""
        for path in reversed(self.parts()[number:]):
            path.unlink()

    def join(self, facts: VectorFacts) -> None:
        """The parts as one file, in the place of the output."""
        with replacing(self.out) as temporary, writing_vectors(temporary, facts) as writer:
            for path in self.parts():
                with open_vectors(path) as file:
                    writer.write_table(file.read())
        self.forget_from(0)


def embed_to_file(
    embedder: Embedder,
    images: Iterable[ImagePath | Pause],
    out: str | Path,
    model: str,
    progress: Callable[[bool], None] = lambda unreadable: None,
) -> EmbedSummary:
    """Embed images into a Parquet file, going on from the parts of an earlier run of the same model and images.

    model: its name, for the file. progress: is called after each image, with whether it could not be read.
    """
    import_pyarrow()
    folder = PartFolder(Path(out))
    facts = facts_of(embedder, model)
    if folder.out.is_dir():
        raise VitrailError(f"{shown(folder.out)} is a folder: give the name of a file to write")
    size = embedder.engine.batch_size
    rows_a_part = -(-min(PART_ROWS, max(1, PART_NUMBERS // facts.numbers)) // size) * size
    with folder.locked():
        kept, sources = _skip_kept(folder, facts, iter(images), progress)
        number, count, unreadable = len(kept), sum(rows for rows, _ in kept), sum(errors for _, errors in kept)
        before = count
        with contextlib.closing(_rows(embedder, sources, count)) as rows:
            while part := list(_told(itertools.islice(rows, rows_a_part), progress)):
                folder.write(number, part, facts)
                number, count = number + 1, count + len(part)
                unreadable += sum(row.vector is None for row in part)
        folder.join(facts)
    return EmbedSummary(folder.out, count, unreadable, before)


def _told(rows: Iterable[Row], progress: Callable[[bool], None]) -> Iterator[Row]:
    for row in rows:
        yield row
        progress(row.vector is None)


def _skip_kept(
    folder: PartFolder, facts: VectorFacts, sources: Iterator[ImagePath | Pause], progress: Callable[[bool], None]
) -> tuple[list[tuple[int, int]], Iterator[ImagePath | Pause]]:
    """The rows and the errors of each part that still holds, and the sources that are left."""
    kept: list[tuple[int, int]] = []
    for number, part in enumerate(folder.parts()):
        rows = _kept_rows(part, facts)
        given = list(itertools.islice((one for one in sources if not isinstance(one, Pause)), len(rows)))
        same = bool(rows) and [_column_path(one) for one in given] == [path for path, _, _ in rows]
        if not same or list(map(_column_digest, in_threads(file_digest, given))) != [own for _, own, _ in rows]:
            folder.forget_from(number)
            return kept, itertools.chain(given, sources)
        kept.append((len(rows), sum(unreadable for _, _, unreadable in rows)))
        for _, _, unreadable in rows:
            progress(unreadable)
    return kept, sources


def _kept_rows(part: Path, facts: VectorFacts) -> list[tuple[str, str | None, bool]]:
    """Path, digest and whether it could not be read, of each image of a part; none of a part of other vectors."""
    try:
        if read_facts(part).fingerprint != facts.fingerprint:
            return []
        table = read_columns(part, ["path", "digest", "error"])
    except VitrailError:
        return []
    columns = (table.column("path"), table.column("digest"), table.column("error").is_valid())
    return list(zip(*(column.to_pylist() for column in columns), strict=True))


def _rows(embedder: Embedder, sources: Iterable[ImagePath | Pause], first: int) -> Generator[Row, None, None]:
    """A row each, in order, with ids from `first`."""
    waiting: deque[str | UnreadableImage] = deque()  # digests of those whose vectors are on their way

    def hashed() -> Iterator[ImagePath | Pause]:
        for item in digests_ahead(sources, limit=2 * embedder.engine.batch_size):
            if isinstance(item, Pause):
                yield item
            else:
                path, digest = item
                waiting.append(digest)
                yield path

    for id_, embedding in enumerate(embedder.embed(hashed()), first):
        path, digest = str(embedding.source), waiting.popleft()
        name = recordable(path)
        error = None if embedding.error is None else embedding.error.why
        vector = embedding.vector
        if name is None:
            vector, error = None, "has a name that is not UTF-8: rename it"
        yield Row(id_, shown(path) if name is None else name, _column_digest(digest), vector, error)


def _column_path(path: ImagePath) -> str:
    return recordable(path) or shown(path)


def _column_digest(digest: str | UnreadableImage) -> str | None:
    return None if isinstance(digest, UnreadableImage) else digest
