"""Groups of images that are nearly the same."""

from __future__ import annotations

import numpy as np

from vitrail.search.nearest_neighbours import neighbours_of_all
from vitrail.search.pile.near_duplicates import near_duplicates


def test_copies_are_found_whatever_the_scale_of_cosines() -> None:
    rng = np.random.default_rng(1)
    vectors = rng.normal(size=(200, 32))
    nearly = vectors[[3, 3, 120]] + 0.005 * rng.normal(size=(3, 32))
    for shift in (0.0, 30.0):  # all cosines near 1, as some models have them
        pile = np.concatenate([vectors, nearly]).astype(np.float32) + shift
        neighbours = neighbours_of_all(pile, 15)
        assert sorted(near_duplicates(neighbours)) == [[3, 200, 201], [120, 202]]


def test_there_may_be_none() -> None:
    neighbours = neighbours_of_all(np.eye(6, dtype=np.float32), 3)
    assert near_duplicates(neighbours) == []
    alone = neighbours_of_all(np.eye(6, dtype=np.float32)[:1], 3)
    assert near_duplicates(alone) == []


def test_neighbours_in_a_dense_region_are_not_copies_and_a_long_burst_is_one_group() -> None:
    rng = np.random.default_rng(1)
    dense = 5 * np.eye(32)[0] + 0.35 * rng.normal(size=(80, 32))  # four times as near as the rest
    burst = 5 * np.eye(32)[1] + 1e-4 * rng.normal(size=(30, 32))
    pile = np.concatenate([rng.normal(size=(120, 32)), dense, burst]).astype(np.float32)
    assert near_duplicates(neighbours_of_all(pile, 15)) == [list(range(200, 230))]
