"""The map keeps neighbours, by scikit-learn's measure, and far better than two principal components."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.decomposition import PCA
from sklearn.manifold import trustworthiness

from tests.search.pile.blobs import blobs
from vitrail.search.nearest_neighbours import neighbours_of_all
from vitrail.search.pile.projection import NEIGHBOURS, neighbour_weights, principal_components, project


@pytest.fixture(scope="module")
def pile() -> tuple[np.ndarray, np.ndarray]:
    return blobs(20, 25, width=64, noise=1.5)


def test_neighbours_stay_neighbours(pile: tuple[np.ndarray, np.ndarray]) -> None:
    vectors, cluster = pile
    neighbours = neighbours_of_all(vectors, NEIGHBOURS)
    drawn = project(vectors, neighbours)
    kept = trustworthiness(vectors, drawn, n_neighbors=10, metric="cosine")
    plain = trustworthiness(vectors, principal_components(vectors), n_neighbors=10, metric="cosine")
    assert kept > 0.98 and kept > plain + 0.1
    centres = np.stack([drawn[cluster == number].mean(0) for number in range(20)])
    nearest = ((drawn[:, None] - centres) ** 2).sum(2).argmin(1)
    assert (nearest == cluster).mean() > 0.97


def test_the_same_seed_draws_the_same_map(pile: tuple[np.ndarray, np.ndarray]) -> None:
    vectors = pile[0][::4]
    neighbours = neighbours_of_all(vectors, NEIGHBOURS)
    first, again, other = (project(vectors, neighbours, seed) for seed in (0, 0, 1))
    assert np.array_equal(first, again) and not np.array_equal(first, other)


def test_principal_components_are_those_of_scikit_learn() -> None:
    vectors = blobs(3, 30)[0]
    unit = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    reference, found = PCA(2).fit_transform(unit), principal_components(vectors)
    np.testing.assert_allclose(np.abs(found), np.abs(reference), atol=1e-4)


def test_every_neighbourhood_weighs_the_same() -> None:
    """One is ten times as wide as the other."""
    rng = np.random.default_rng(0)
    distance = np.sort(rng.uniform(0.1, 1, size=(30, 8)), axis=1).astype(np.float32)
    index = np.stack([(row + 1 + np.arange(8)) % 30 for row in range(30)])
    weights = neighbour_weights(distance, index)
    np.testing.assert_allclose((neighbour_weights(10 * distance, index) - weights).toarray(), 0, atol=1e-4)
    assert (weights.toarray() == weights.toarray().T).all() and weights.max() == pytest.approx(1)


@pytest.mark.parametrize("count", [1, 2, 3, 4, 10])
def test_few_images_have_places_too(count: int) -> None:
    vectors = np.random.default_rng(0).normal(size=(count, 5)).astype(np.float32)
    drawn = project(vectors, neighbours_of_all(vectors, NEIGHBOURS))
    assert drawn.shape == (count, 2) and np.isfinite(drawn).all() and len(np.unique(drawn, axis=0)) == count


def test_copies_come_to_finite_places() -> None:
    vectors = np.repeat(np.random.default_rng(0).normal(size=(3, 5)), 20, axis=0).astype(np.float32)
    assert np.isfinite(project(vectors, neighbours_of_all(vectors, NEIGHBOURS))).all()
