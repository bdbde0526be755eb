"""From image files to rows of an index: what is there already is left, what changed is replaced, no picture is doubled.

Rows are committed some thousand at a time, so that a kill costs no more than that; the same command goes on.
"""

from __future__ import annotations

import contextlib
import os
import sys
import time
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeAlias

import numpy as np

from vitrail.data.manifest.manifest_row import INSIDE
from vitrail.images.unreadable import UnreadableImage
from vitrail.inference.prefetch import Pause
from vitrail.search.embeddings import Embedder
from vitrail.search.index.index_writer import IndexWriter
from vitrail.search.vector_file import Row, digests_ahead, file_digest, recordable
from vitrail.storage import is_url
from vitrail.text import counted, shown

COMMIT_ROWS, COMMIT_SECONDS = 1024, 30.0  # whichever comes first
READ_AHEAD = 64  # files that are hashed before they are needed

ImagePath: TypeAlias = str | Path


@dataclass
class AddSummary:
    """What came of the images that were given."""

    added: int = 0
    replaced: int = 0  # the file at this path has another content than when it was added
    present: int = 0  # the very file was there
    copies: int = 0  # the same content was there under another path
    moved: int = 0  # the same, and at the other path it is no more: the index now has the new path
    errors: list[UnreadableImage] = field(default_factory=list)

    def in_words(self) -> str:
        """Such as "1,000 added, 2 copies left out"."""
        parts = [f"{self.added:,} added"]
        parts += [f"{self.replaced:,} replaced"] if self.replaced else []
        parts += [f"{self.moved:,} moved"] if self.moved else []
        parts += [f"{self.present:,} already there"] if self.present else []
        parts += [f"{counted(self.copies, 'copy', 'copies')} left out"] if self.copies else []
        parts += [f"{len(self.errors):,} could not be read"] if self.errors else []
        return ", ".join(parts)


class Addition:
    """One run that adds images: what waits for its vector, and what waits to be committed."""

    def __init__(self, writer: IndexWriter) -> None:
        self.writer = writer
        self.summary = AddSummary()
        self.waiting: deque[tuple[str, str]] = deque()  # path and digest of those whose vectors are on their way
        self.in_hand: set[str] = set()  # digests of what is not committed yet
        self.rows: list[Row] = []
        self.removed: set[int] = set()
        self.committed_at = time.monotonic()

    def new_files(self, sources: Iterable[ImagePath | Pause], seen: Callable[[], None]) -> Iterator[str | Pause]:
        """The paths of those whose vector is needed."""
        with contextlib.closing(digests_ahead(sources, READ_AHEAD)) as files:
            for item in files:
                if isinstance(item, Pause):
                    self.commit(only_if_due=True)
                    yield item
                    continue
                path, digest = os.path.abspath(item[0]), item[1]
                if self._is_new(path, digest):
                    yield path
                else:
                    if self.due:  # where all were moved, no vector comes that would be the moment to look
                        self.commit()
                    seen()

    def _is_new(self, path: str, digest: str | UnreadableImage) -> bool:
        if isinstance(digest, UnreadableImage):
            self.summary.errors.append(digest)
            return False
        if recordable(path) is None:
            why = "has a name that is not UTF-8: rename it"
            self.summary.errors.append(UnreadableImage(shown(path), "not an image", why))
            return False
        known = self.writer.by_digest.get(digest)
        known = None if known is not None and known[0] in self.removed else known
        if known is None and digest not in self.in_hand:
            self.in_hand.add(digest)
            self.waiting.append((path, digest))
            return True
        before = self.writer.by_path.get(path)
        if before is not None and before[1] != digest:  # the file became a copy of another one
            self.removed.add(before[0])
        if known is None:
            self.summary.copies += 1
        else:
            self._same_content(path, digest, *known)
        return False

    def _same_content(self, path: str, digest: str, id_: int, known_path: str) -> None:
        if known_path == path:
            self.summary.present += 1
        elif not is_plain_file(known_path) or file_digest(known_path) == digest:
            self.summary.copies += 1
        else:
            self.summary.moved += 1
            self.in_hand.add(digest)
            self._put(Row(-1, path, digest, self.writer.vector(id_)), replaces=[id_])

    def take(self, error: UnreadableImage | None, vector: np.ndarray | None) -> None:
        """What became of the oldest file that waits."""
        path, digest = self.waiting.popleft()
        if vector is not None and not np.isfinite(vector).all():
            error = UnreadableImage(path, "damaged", "gives a vector that is not finite")
        if error is not None or vector is None:
            self.summary.errors.append(error or UnreadableImage(path, "damaged", "gives no vector"))
            self.in_hand.discard(digest)
            return
        before = self.writer.by_path.get(path)
        if before is None:
            self.summary.added += 1
        else:
            self.summary.replaced += 1
        self._put(Row(-1, path, digest, vector), replaces=[] if before is None else [before[0]])

    def add_row(self, row: Row) -> None:
        """An image whose vector is there already, by its path and digest; its id is given when it is committed."""
        if row.vector is None or row.digest is None:
            self.summary.errors.append(UnreadableImage(shown(row.path), "damaged", row.error or "gives no vector"))
        elif self._is_new(row.path, row.digest):
            self.take(None, row.vector)
        if self.due:
            self.commit()

    def _put(self, row: Row, replaces: list[int]) -> None:
        self.rows.append(row)
        self.removed.update(replaces)

    @property
    def due(self) -> bool:
        """Whether enough has come for a generation of the index."""
        return len(self.rows) >= COMMIT_ROWS or time.monotonic() - self.committed_at >= COMMIT_SECONDS

    def commit(self, only_if_due: bool = False) -> None:
        """Make what has come so far a generation of the index.

        only_if_due: where there is enough of it, or nothing is on its way, as when standard input makes a pause."""
        if only_if_due and not self.due and self.waiting:
            return
        rows, removed = self.rows, self.removed
        self.rows, self.removed = [], set()  # before, for an interruption commits too, and may come when this is done
        self.writer.commit(rows, removed)
        self.in_hand.difference_update(row.digest or "" for row in rows)
        self.committed_at = time.monotonic()


def add_images(
    writer: IndexWriter,
    embedder: Embedder,
    sources: Iterable[ImagePath | Pause],
    seen: Callable[[], None] = lambda: None,
) -> AddSummary:
    """Add the images that are new, and replace those whose file has changed. seen: is called after each image.

    An interruption leaves what was committed, and commits what has come since.
    """
    addition = Addition(writer)
    try:
        with contextlib.closing(embedder.embed(addition.new_files(sources, seen))) as embeddings:
            for embedding in embeddings:
                addition.take(embedding.error, embedding.vector)
                addition.commit(only_if_due=True)
                seen()
    finally:
        addition.commit()
    return addition.summary


def is_plain_file(path: str) -> bool:
    """Whether an index's path is that of a file on this machine, and not of a tar's member, of a Parquet file's cell or
    of a store's object. Only such a file can be looked at again for little."""
    return INSIDE not in path and not is_url(path)


def path_in_index(path: ImagePath) -> str:
    """What the index calls an image: a store's address as it is, a file of this machine by its whole path."""
    return str(path) if is_url(path) else os.path.abspath(path)


def remove_images(writer: IndexWriter, paths: Iterable[ImagePath]) -> tuple[int, list[str]]:
    """Remove pictures by their paths, or all below a folder; how many, and the paths that the index does not have.

    The files need not be there any more.
    """
    removed: set[int] = set()
    unknown: list[str] = []
    known = sorted(writer.by_path)
    for path in map(path_in_index, paths):
        own = [path] if path in writer.by_path else _below(known, path)
        removed.update(writer.by_path[one][0] for one in own)
        if not own:
            unknown.append(path)
    writer.commit(removed=removed)
    return len(removed), unknown


def _below(paths: Sequence[str], folder: str) -> Sequence[str]:
    """Those of the sorted paths that lie in a folder."""
    start = folder.rstrip(os.sep) + os.sep
    return paths[bisect_left(paths, start) : bisect_left(paths, start + chr(sys.maxunicode))]
