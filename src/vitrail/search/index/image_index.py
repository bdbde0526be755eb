"""An index, open to read: its pictures, and those that are nearest to a vector."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Unpack

import numpy as np
from numpy.typing import NDArray

from vitrail.errors import VitrailError
from vitrail.files import map_array
from vitrail.inference.read_source import Source
from vitrail.inference.running_options import AnsweringOptions
from vitrail.search.embeddings import Embedder, Vectors, normalised
from vitrail.search.index.exact_search import top_places
from vitrail.search.index.hnsw_graph import EXACT_LIMIT, HnswGraph, open_graph
from vitrail.search.index.index_manifest import Manifest, read_manifest
from vitrail.search.index.index_model import open_index_model
from vitrail.search.index.index_segment import Segment, open_segment
from vitrail.search.region import Box, region_vector
from vitrail.text import shown

ATTEMPTS = 5  # to open the files of the pointer, which a writer may replace meanwhile


@dataclass(frozen=True)
class Neighbour:
    """A picture of the index. score: the cosine with the query, 1 for the same."""

    id: int
    path: str
    score: float
    digest: str

    def to_dict(self) -> dict[str, Any]:
        """As JSON has it."""
        return {"id": self.id, "path": self.path, "score": round(self.score, 6)}


class ImageIndex:
    """The newest generation of an index, as it was when it was opened, whatever is written meanwhile."""

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        self.manifest, self.segments, self.removed = _open(self.folder)
        self._starts = np.cumsum([0, *map(len, self.segments)])
        self._embedders: dict[Any, Embedder] = {}

    def __len__(self) -> int:
        return self.manifest.size

    def entries(self) -> Iterator[tuple[int, str, str]]:
        """Id, path and content digest of every picture."""
        for segment in self.segments:
            live = ~np.isin(segment.ids, self.removed)
            columns = zip(segment.ids.tolist(), segment.paths.to_pylist(), segment.digests.to_pylist(), strict=True)
            yield from itertools.compress(columns, live.tolist())

    def vector(self, id_: int) -> Vectors:
        """(D,) of a picture; VitrailError for an id that is not in the index."""
        segment, place = self._place(id_)
        return np.array(segment.vectors[place])

    def path(self, id_: int) -> str:
        """Where a picture was when it was added; VitrailError for an id that is not in the index."""
        segment, place = self._place(id_)
        return str(segment.paths[place])

    def _place(self, id_: int) -> tuple[Segment, int]:
        if id_ not in self._removed_ids:
            for segment in self.segments:
                place = int(np.searchsorted(segment.ids, id_))
                if place < len(segment) and segment.ids[place] == id_:
                    return segment, place
        raise VitrailError(f"there is no picture {id_} in the index {shown(self.folder)}")

    @cached_property
    def _removed_ids(self) -> frozenset[int]:
        return frozenset(self.removed.tolist())

    @cached_property
    def _dead(self) -> list[NDArray[np.bool_] | None]:
        """Of each segment which rows were removed; None: none of them."""
        dead = [np.isin(segment.ids, self.removed) for segment in self.segments]
        return [one if one.any() else None for one in dead]

    # ---- search

    def neighbours(self, vectors: Vectors, top: int = 20, exact: bool | None = None) -> list[list[Neighbour]]:
        """For each vector (Q, D) of this index's model, the nearest pictures by cosine, best first.

        exact: look at every vector; None: where there are at most a million, or no graph of them.
        """
        if vectors.ndim != 2 or vectors.shape[1] != self.manifest.facts.width:
            raise VitrailError(f"vectors are (Q, {self.manifest.facts.width}) here, not {vectors.shape}")
        queries = normalised(vectors)
        graph = None if exact or (exact is None and len(self) <= EXACT_LIMIT) else self._graph
        if graph is None:
            ids, scores = self._exact(queries, top)
        else:
            ids, scores = self._by_graph(graph, queries, top)
        return [
            [self._neighbour(int(id_), float(score)) for id_, score in zip(*row, strict=True) if score > -np.inf]
            for row in zip(ids, scores, strict=True)
        ]

    def search(
        self,
        query: Source | int,
        top: int = 20,
        *,
        box: Box | tuple[float, float, float, float] | None = None,
        model: str | Path | None = None,
        **options: Unpack[AnsweringOptions],
    ) -> list[Neighbour]:
        """The pictures that are most like a picture, best first; UnreadableImage where it cannot be read.

        query: a path, bytes, a Pillow image, an array, or the id of a picture of the index. box: search by this part
        of it, (x, y, width, height) in its pixels. model: where the index's model is now. options: as `Predictor`
        takes them.
        """
        if isinstance(query, int):
            if box is None:
                return self.neighbours(self.vector(query)[None], top)[0]
            query = self.path(query)
        vector = query_vector(self.embedder(model, **options), query, None if box is None else Box(*box))
        return self.neighbours(vector[None], top)[0]

    def embedder(self, model: str | Path | None = None, **options: Unpack[AnsweringOptions]) -> Embedder:
        """The index's model, opened once."""
        key = (str(model), str(options))
        if key not in self._embedders:
            self._embedders[key] = open_index_model(self.folder, self.manifest, model, **options)
        return self._embedders[key]

    @cached_property
    def _graph(self) -> HnswGraph | None:
        return open_graph(self.folder, self.manifest)

    def _neighbour(self, id_: int, score: float) -> Neighbour:
        segment, place = self._place(id_)
        return Neighbour(id_, str(segment.paths[place]), min(score, 1.0), str(segment.digests[place]))

    def _exact(self, queries: Vectors, top: int, least: int = 0) -> tuple[NDArray[np.int64], Vectors]:
        """Ids and scores (Q, k), among the pictures with ids of at least `least`."""
        found = []
        for segment, dead in zip(self.segments, self._dead, strict=True):
            start = int(np.searchsorted(segment.ids, least))
            gone = None if dead is None else dead[start:]
            places, scores = top_places(segment.vectors[start:], queries, top, gone)
            found.append((segment.ids[start:][places], scores))
        return _merged(found, len(queries), top)

    def _by_graph(self, graph: HnswGraph, queries: Vectors, top: int) -> tuple[NDArray[np.int64], Vectors]:
        """By the graph, and by looking at those that came after it was made."""
        rows: list[tuple[NDArray[np.int64], Vectors]] = []
        newer_ids, newer_scores = self._exact(queries, top, graph.upto)
        for place, query in enumerate(queries):
            ids = graph.search(query, top, self._is_live)
            vectors = np.stack([self.vector(int(id_)) for id_ in ids]) if len(ids) else np.empty((0, len(query)))
            scores = (vectors @ query).astype(np.float32)  # the graph has half precision
            both = [(ids[None], scores[None]), (newer_ids[place : place + 1], newer_scores[place : place + 1])]
            rows.append(_merged(both, 1, top))
        widest = max(ids.shape[1] for ids, _ in rows)
        pads = [(0, widest - ids.shape[1]) for ids, _ in rows]
        ids = np.concatenate([np.pad(ids, ((0, 0), pad)) for (ids, _), pad in zip(rows, pads, strict=True)])
        scores = [np.pad(s, ((0, 0), pad), constant_values=-np.inf) for (_, s), pad in zip(rows, pads, strict=True)]
        return ids, np.concatenate(scores)

    def _is_live(self, ids: NDArray[np.int64]) -> NDArray[np.bool_]:
        """(k,) which of these ids are in the index."""
        live = np.zeros(len(ids), bool)
        for segment in self.segments:
            places = np.searchsorted(segment.ids, ids)
            inside = places < len(segment)
            live[inside] |= segment.ids[places[inside]] == ids[inside]
        return live & ~np.isin(ids, self.removed)


def query_vector(embedder: Embedder, query: Source, box: Box | None = None) -> Vectors:
    """(D,) of a picture, or of a part of it; UnreadableImage where it cannot be read."""
    if box is not None:
        return region_vector(embedder, query, box)
    [embedding] = embedder.embed([query])
    if embedding.error is not None:
        raise embedding.error
    assert embedding.vector is not None
    return embedding.vector


def _open(folder: Path) -> tuple[Manifest, list[Segment], NDArray[np.int64]]:
    """The newest generation. A writer that ends meanwhile may delete the files of one before: then it is read again."""
    for attempt in itertools.count(1):
        manifest = read_manifest(folder)
        try:
            segments = [open_segment(folder, entry, manifest.facts) for entry in manifest.segments]
            return manifest, segments, _removed_ids(folder, manifest)
        except (VitrailError, OSError, ValueError) as error:
            if attempt == ATTEMPTS or read_manifest(folder) == manifest:
                raise VitrailError(f"the index {shown(folder)} is damaged ({error}): make it again") from None
    raise AssertionError


def _removed_ids(folder: Path, manifest: Manifest) -> NDArray[np.int64]:
    path = manifest.removed_file(folder)
    if path is None:
        return np.empty(0, np.int64)
    removed = map_array(path)
    if removed is None or removed.shape != (manifest.removed,) or removed.dtype != np.int64:
        raise VitrailError(f"{path} does not hold the ids of {manifest.removed} removed pictures")
    return np.array(removed)


def _merged(
    found: Sequence[tuple[NDArray[np.int64], Vectors]], queries: int, top: int
) -> tuple[NDArray[np.int64], Vectors]:
    """Several lists of ids and scores (Q, k) as the best of all, best first."""
    ids = np.concatenate([np.empty((queries, 0), np.int64), *(one for one, _ in found)], axis=1)
    scores = np.concatenate([np.empty((queries, 0), np.float32), *(one for _, one in found)], axis=1)
    order = np.lexsort((ids, -scores))[:, :top]
    return np.take_along_axis(ids, order, axis=1), np.take_along_axis(scores, order, axis=1)
