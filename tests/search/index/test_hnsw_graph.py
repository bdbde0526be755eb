"""The graph finds what exact search finds, whatever was added and removed since it was made."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from vitrail.search.embeddings import Vectors, normalised
from vitrail.search.index import hnsw_graph, image_index
from vitrail.search.index.hnsw_graph import build_graph, graph_files, needs_graph
from vitrail.search.index.image_index import ImageIndex
from vitrail.search.index.index_writer import writing_index
from vitrail.search.vector_file import Row, VectorFacts

pytest.importorskip("pyarrow")
pytest.importorskip("usearch")
WIDTH = 48
FACTS = VectorFacts("print", "pooled", True, WIDTH, None, "the model")


def walks(count: int, seed: int) -> Vectors:
    """Unit vectors whose coordinates are random walks: neighbours differ little, as those of photos do."""
    steps = np.random.default_rng(seed).standard_normal((count, WIDTH)).astype(np.float32)
    return normalised(np.cumsum(steps, axis=1))


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for module in (hnsw_graph, image_index):
        monkeypatch.setattr(module, "EXACT_LIMIT", 1000)
    with writing_index(tmp_path / "idx", FACTS) as writer:
        add(writer, walks(3000, 0))
    build_graph(ImageIndex(tmp_path / "idx"))
    return tmp_path / "idx"


def add(writer: object, vectors: Vectors) -> None:
    first = writer.manifest.next_id  # type: ignore[attr-defined]
    rows = [Row(-1, f"/{first + place}.png", str(first + place), vector) for place, vector in enumerate(vectors)]
    writer.commit(rows)  # type: ignore[attr-defined]


def recall(index: ImageIndex, queries: Vectors, top: int = 10) -> float:
    exact = index.neighbours(queries, top, exact=True)
    found = index.neighbours(queries, top)
    shared = [len({a.id for a in one} & {b.id for b in other}) for one, other in zip(exact, found, strict=True)]
    assert all(len(row) == top for row in found)
    for row in found:
        assert [one.score for one in row] == sorted((one.score for one in row), reverse=True)
    return sum(shared) / (top * len(queries))


def test_recall_at_10(folder: Path) -> None:
    index = ImageIndex(folder)
    assert index._graph is not None
    assert recall(index, walks(100, 1)) >= 0.98


def test_new_and_removed_pictures(folder: Path) -> None:
    new = walks(50, 2)
    with writing_index(folder) as writer:
        add(writer, new)
        writer.commit(removed=range(400))
    index = ImageIndex(folder)
    assert list(graph_files(folder).values()) == [3000]
    assert recall(index, walks(50, 3)) >= 0.98
    for place, vector in enumerate(new):
        assert index.neighbours(vector[None], 1)[0][0].id == 3000 + place
    gone = walks(3000, 0)[:400]
    assert all(one.id >= 400 for row in index.neighbours(gone, 5) for one in row)


def test_it_is_made_again_when_it_is_far_behind(folder: Path) -> None:
    manifest = ImageIndex(folder).manifest
    assert not needs_graph(folder, manifest)
    with writing_index(folder) as writer:
        add(writer, walks(500, 4))
    assert needs_graph(folder, ImageIndex(folder).manifest)
    build_graph(ImageIndex(folder))
    assert list(graph_files(folder).values()) == [3500]
    with writing_index(folder) as writer:
        writer.commit(removed=range(1000))  # more than a fifth: vectors are written anew
    assert not graph_files(folder)
    assert recall(ImageIndex(folder), walks(10, 5)) == 1  # by looking at all


def test_a_damaged_graph_is_no_harm(folder: Path) -> None:
    [path] = graph_files(folder)
    path.write_bytes(path.read_bytes()[:1000])
    assert recall(ImageIndex(folder), walks(5, 6)) == 1
