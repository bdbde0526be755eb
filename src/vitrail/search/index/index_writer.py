"""The one writer of an index: new rows and removed ones become a new generation, or nothing happened at all."""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from vitrail.errors import VitrailError
from vitrail.files import holding_lock, remove_unfinished, replacing
from vitrail.search.embeddings import Vectors
from vitrail.search.index.hnsw_graph import remove_graphs
from vitrail.search.index.image_index import ImageIndex
from vitrail.search.index.index_manifest import Manifest, SegmentEntry, is_index, read_manifest, write_manifest
from vitrail.search.index.index_segment import swallowed, write_segment
from vitrail.search.vector_file import Row, VectorFacts, import_pyarrow, table_of
from vitrail.text import shown

REBUILD = 0.2  # of all rows, removed: then the others are written anew
LOCK = ".lock"


@contextlib.contextmanager
def writing_index(folder: str | Path, facts: VectorFacts | None = None) -> Iterator[IndexWriter]:
    """Hold an index to write to it. facts: where there is none yet, make one of such vectors.

    A second writer is refused; the system releases the lock however this process ends. Readers never wait.
    """
    folder = Path(folder)
    import_pyarrow()
    if facts is None or is_index(folder):
        read_manifest(folder)  # refuses what is no index
    else:
        check_new_place(folder)
    with holding_lock(folder / LOCK, f"another process is writing to {shown(folder)}: wait until it has ended"):
        remove_unfinished(folder)
        if facts is not None and not is_index(folder):
            write_manifest(folder, Manifest(facts))
        yield IndexWriter(folder)


def check_new_place(folder: Path) -> None:
    """Refuse to make an index in a folder that holds something else."""
    if folder.exists() and (not folder.is_dir() or any(one.name != LOCK for one in folder.iterdir())):
        raise VitrailError(f"{shown(folder)} is there and is no index: choose another --out")


class IndexWriter:
    """What is in an index, by path and by content, and how it changes. Made by `writing_index`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.manifest = read_manifest(folder)
        index = ImageIndex(folder)
        self.by_path: dict[str, tuple[int, str]] = {}  # of those that count: id and digest
        self.by_digest: dict[str, tuple[int, str]] = {}  # id and path
        for id_, path, digest in index.entries():
            self._know(id_, path, digest)
        self._index: ImageIndex | None = index
        self._removed: NDArray[np.int64] = index.removed

    @property
    def facts(self) -> VectorFacts:
        """What made the vectors."""
        return self.manifest.facts

    def vector(self, id_: int) -> Vectors:
        """(D,) of a picture of the index."""
        if self._index is None:
            self._index = ImageIndex(self.folder)
        return self._index.vector(id_)

    def commit(self, rows: Sequence[Row] = (), removed: Collection[int] = (), rebuild: bool = False) -> None:
        """Add rows, whose ids are given here, and drop those with the removed ids, as one new generation.

        rebuild: write all rows anew, whatever is removed.
        """
        if not rows and not removed and not rebuild:
            return
        before = self.manifest
        dead = np.union1d(self._removed, np.fromiter(removed, np.int64, len(removed)))
        many = len(dead) >= REBUILD * (before.rows + len(rows))
        everything = rebuild or (many and len(dead) > 0)
        taken = len(before.segments) if everything else swallowed(before.segments, len(rows))
        kept, merged = before.segments[: len(before.segments) - taken], before.segments[len(before.segments) - taken :]
        after = replace(before, generation=before.generation + 1, next_id=before.next_id + len(rows), segments=kept)
        numbered = [replace(row, id=before.next_id + place) for place, row in enumerate(rows)]
        if rows or merged:
            after, dead = self._write_segment(after, merged, numbered, dead)
        after = replace(after, removed=len(dead))
        if (path := after.removed_file(self.folder)) is not None:
            with replacing(path) as temporary, temporary.open("wb") as file:
                np.save(file, dead)
        write_manifest(self.folder, after)  # from here on it is so
        self.manifest, self._removed, self._index = after, dead, None
        self._delete_unused(before, after)
        if everything:
            remove_graphs(self.folder)
        self._forget(removed)
        for row in numbered:
            self._know(row.id, row.path, row.digest or "")

    def _write_segment(
        self, after: Manifest, merged: Sequence[SegmentEntry], new: Sequence[Row], dead: NDArray[np.int64]
    ) -> tuple[Manifest, NDArray[np.int64]]:
        """The generation with its new segment, and the removed ids that are still in a segment."""
        pa = import_pyarrow()
        ids = [
            pa.parquet.read_table(entry.parquet(self.folder), columns=["id"]).column("id").to_numpy()
            for entry in merged
        ]
        held = np.concatenate([np.empty(0, np.int64), *ids])
        rows = len(held) - int(np.isin(held, dead).sum()) + len(new)
        entry = SegmentEntry(f"vectors-{after.generation:06d}", rows)
        if rows:
            older = [(one.parquet(self.folder), dead) for one in merged]
            write_segment(self.folder, entry, after.facts, older, table_of(new, after.facts))
            after = replace(after, segments=(*after.segments, entry))
        return after, np.setdiff1d(dead, held)

    def _delete_unused(self, before: Manifest, after: Manifest) -> None:
        """Files of no generation but these two: of older ones, and of writers that were killed."""
        used = before.files(self.folder) | after.files(self.folder)
        for path in [*self.folder.glob("vectors-*"), *self.folder.glob("removed-*")]:
            if path not in used:
                with contextlib.suppress(OSError):  # Windows keeps files that a reader has open
                    path.unlink()

    def _know(self, id_: int, path: str, digest: str) -> None:
        self.by_path[path] = (id_, digest)
        self.by_digest[digest] = (id_, path)

    def _forget(self, ids: Collection[int]) -> None:
        if not ids:
            return
        gone = set(ids)
        self.by_path = {path: entry for path, entry in self.by_path.items() if entry[0] not in gone}
        self.by_digest = {digest: entry for digest, entry in self.by_digest.items() if entry[0] not in gone}
