"""Exact neighbours, against scikit-learn's."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.neighbors import NearestNeighbors

from tests.search.pile.blobs import blobs
from vitrail.search import nearest_neighbours as module
from vitrail.search.nearest_neighbours import nearest_neighbours, neighbours_of_all


@pytest.mark.parametrize("count", [40, 3000])  # one is searched whole, the other by chunks, in several blocks
def test_neighbours_are_those_of_scikit_learn(count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "CELLS", 100 * count)
    rng = np.random.default_rng(0)
    base, queries = rng.normal(size=(count, 12)).astype(np.float32), rng.normal(size=(250, 12)).astype(np.float32)
    base *= rng.uniform(0.1, 10, size=(count, 1)).astype(np.float32)  # lengths do not matter
    found = nearest_neighbours(queries, base, 7)
    reference = NearestNeighbors(n_neighbors=7, metric="cosine", algorithm="brute").fit(base)
    distance, index = reference.kneighbors(queries)
    np.testing.assert_array_equal(found.index, index)
    np.testing.assert_allclose(found.similarity, 1 - distance, atol=1e-5)


def test_no_vector_is_its_own_neighbour_but_a_copy_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "CELLS", 64)
    vectors = np.random.default_rng(0).normal(size=(30, 5)).astype(np.float32)
    vectors[7] = vectors[21]
    found = neighbours_of_all(vectors, 3)
    assert found.index.shape == (30, 3) and not (found.index == np.arange(30)[:, None]).any()
    assert found.index[7, 0] == 21 and found.index[21, 0] == 7


def test_there_are_no_more_neighbours_than_vectors() -> None:
    vectors = np.eye(3, dtype=np.float32)
    assert nearest_neighbours(vectors[:1], vectors, 20).index.shape == (1, 3)
    assert neighbours_of_all(vectors, 20).index.shape == (3, 2)
    assert neighbours_of_all(vectors[:1], 20).index.shape == (1, 0)


def test_of_many_vectors_nearly_all_neighbours_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    vectors = blobs(20, 200)[0]
    exact = neighbours_of_all(vectors, 10)
    monkeypatch.setattr(module, "EXACT", 1000)
    found = neighbours_of_all(vectors, 10)
    same = [len(set(one) & set(other)) for one, other in zip(found.index, exact.index, strict=True)]
    assert np.mean(same) / 10 > 0.95 and not (found.index == np.arange(len(vectors))[:, None]).any()
    cosine = (vectors[0] @ vectors[found.index[0, 0]]) / np.prod(
        [np.linalg.norm(vectors[n]) for n in (0, found.index[0, 0])]
    )
    assert found.similarity[0, 0] == pytest.approx(float(cosine), abs=1e-5)


def test_copies_of_one_picture_among_many_are_each_others_neighbours(monkeypatch: pytest.MonkeyPatch) -> None:
    """Several cells begin at the same vector, and all but one of them stay empty."""
    monkeypatch.setattr(module, "EXACT", 100)
    vectors = blobs(4, 100)[0]
    vectors[:300] = vectors[0]
    found = neighbours_of_all(vectors, 5)
    np.testing.assert_allclose(found.similarity[:300], 1, atol=1e-5)
    assert (found.index[:300] < 300).all() and not (found.index == np.arange(400)[:, None]).any()
