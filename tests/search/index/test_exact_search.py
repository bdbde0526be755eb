"""Exact search against sorting all products."""

from __future__ import annotations

import numpy as np
import pytest

from vitrail.search.index import exact_search
from vitrail.search.index.exact_search import top_places


@pytest.mark.parametrize("rows", [0, 1, 7, 100])
@pytest.mark.parametrize("top", [1, 5, 200])
def test_against_sorting(rows: int, top: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exact_search, "BLOCK", 16)
    rng = np.random.default_rng(rows)
    vectors = rng.integers(-2, 3, (rows, 4)).astype(np.float32)  # many equal products
    queries = rng.integers(-2, 3, (3, 4)).astype(np.float32)
    dead = rng.random(rows) < 0.3
    products = queries @ vectors.T
    products[:, dead] = -np.inf
    places, scores = top_places(vectors, queries, top, dead)
    assert places.shape == scores.shape == (3, min(top, rows))
    np.testing.assert_array_equal(scores, -np.sort(-products, axis=1)[:, :top])
    np.testing.assert_array_equal(np.take_along_axis(products, places, axis=1), scores)
    assert all(len(set(row)) == len(row) for row in places.tolist())
