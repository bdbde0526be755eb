"""The HNSW graph of a large index (usearch): a cache that can be made again from the vectors at any time.

Its file is called after the first id that it does not have. Ids are never given out twice, so a graph is never wrong:
it may lack new pictures, at which the search looks one by one, and hold removed ones, which it leaves out.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray

from vitrail.errors import VitrailError
from vitrail.files import replacing
from vitrail.progress import ProgressBar
from vitrail.search.embeddings import Vectors
from vitrail.search.index.index_manifest import Manifest

if TYPE_CHECKING:
    from vitrail.search.index.image_index import ImageIndex

EXACT_LIMIT = 1_000_000  # vectors: up to here exact search takes some hundredths of a second
NEW_SHARE = 0.1  # of the graph's vectors: with more new ones a writer makes it again
CONNECTIVITY, EXPANSION_ADD, EXPANSION_SEARCH = 24, 128, 256
BATCH = 16_384  # vectors that are added at a time
_NAME = re.compile(r"graph-(\d+)\.usearch")


class HnswGraph:
    """A graph of the pictures with ids below `upto`."""

    def __init__(self, graph: Any, upto: int) -> None:
        self.graph, self.upto = graph, upto

    def search(
        self, query: Vectors, top: int, is_live: Callable[[NDArray[np.int64]], NDArray[np.bool_]]
    ) -> NDArray[np.int64]:
        """Ids of about the `top` nearest that are live, best first; more are asked for until there are enough."""
        wanted = top
        while True:
            wanted = min(2 * wanted, len(self.graph))
            ids = self.graph.search(query, wanted).keys.astype(np.int64)
            ids = ids[is_live(ids)]
            if len(ids) >= top or wanted == len(self.graph):
                return ids[:wanted]


def graph_files(folder: Path) -> dict[Path, int]:
    """The graphs of a folder, with the first id that each does not have."""
    return {path: int(match[1]) for path in folder.glob("graph-*") if (match := _NAME.fullmatch(path.name))}


def open_graph(folder: Path, manifest: Manifest) -> HnswGraph | None:
    """The newest graph that goes with a generation, memory-mapped; None where there is none, or no usearch."""
    usable = {path: upto for path, upto in graph_files(folder).items() if upto <= manifest.next_id}
    if not usable:
        return None
    path = max(usable, key=lambda path: usable[path])
    try:
        graph = _empty_graph(manifest.facts.width)
        graph.view(str(path))
    except (VitrailError, RuntimeError, OSError):
        return None
    return HnswGraph(graph, usable[path])


def needs_graph(folder: Path, manifest: Manifest) -> bool:
    """Whether an index is large, and more than a tenth of it is not in a graph."""
    upto = max(graph_files(folder).values(), default=0)
    return manifest.size > EXACT_LIMIT and manifest.next_id - upto > NEW_SHARE * manifest.next_id


def build_graph(index: ImageIndex) -> None:
    """Make the graph of all pictures of an index, in the place of older ones."""
    manifest = index.manifest
    graph, threads = _empty_graph(manifest.facts.width), torch.get_num_threads()
    with ProgressBar("graph", len(index), unit="vectors") as bar:
        for segment in index.segments:
            live = ~np.isin(segment.ids, index.removed)
            for start in range(0, len(segment), BATCH):
                part = slice(start, start + BATCH)
                graph.add(segment.ids[part][live[part]], segment.vectors[part][live[part]], threads=threads)
                bar.update(len(graph), len(index))
    older = graph_files(index.folder)
    path = index.folder / f"graph-{manifest.next_id}.usearch"
    with replacing(path) as temporary:
        graph.save(str(temporary))
    for one in older:
        if one != path:
            one.unlink(missing_ok=True)


def import_usearch() -> Any:
    """usearch's module of indexes; VitrailError where it is not installed."""
    try:
        import usearch.index
    except ImportError:
        raise VitrailError("a graph of the vectors needs one more package: pip install 'vitrail[search]'") from None
    return usearch.index


def _empty_graph(width: int) -> Any:
    return import_usearch().Index(
        ndim=width,
        metric="ip",
        dtype="f16",
        connectivity=CONNECTIVITY,
        expansion_add=EXPANSION_ADD,
        expansion_search=EXPANSION_SEARCH,
    )


def remove_graphs(folder: Path) -> None:
    """After the vectors were written anew: so many are gone that a graph would hold mostly those."""
    for path in graph_files(folder):
        path.unlink(missing_ok=True)
