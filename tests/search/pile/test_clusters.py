"""Spherical k-means and the number of clusters, against scikit-learn's measures."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from sklearn.metrics import adjusted_rand_score, silhouette_score

from tests.search.pile.blobs import blobs
from vitrail.errors import VitrailError
from vitrail.search.pile import clusters
from vitrail.search.pile.clusters import find_clusters, silhouette


@pytest.mark.parametrize("count", [3, 8])
def test_the_number_of_clusters_is_found(count: int) -> None:
    vectors, truth = blobs(count, 60)
    found = find_clusters(vectors)
    assert found.count == count and adjusted_rand_score(truth, found.number) > 0.95
    assert max(found.silhouettes, key=lambda number: found.silhouettes[number]) == count


def test_of_numbers_that_are_as_good_the_largest_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    values = {2: 0.3, 3: 0.29, 4: 0.28, 5: 0.2}
    monkeypatch.setattr(clusters, "NUMBERS", tuple(values))
    monkeypatch.setattr(clusters, "silhouette", lambda unit, number: values[len(number.unique())])
    assert find_clusters(blobs(8, 60)[0]).count == 4


def test_the_silhouette_is_that_of_scikit_learn() -> None:
    vectors, truth = blobs(4, 25, noise=2)
    unit = torch.nn.functional.normalize(torch.from_numpy(vectors), dim=1)
    found = silhouette(unit, torch.from_numpy(truth))
    assert found == pytest.approx(silhouette_score(vectors, truth, metric="cosine"), abs=1e-5)


def test_clusters_are_numbered_by_their_size_and_do_not_change() -> None:
    vectors = np.concatenate([blobs(1, 10, seed=1)[0], blobs(1, 80, seed=2)[0], blobs(1, 30, seed=3)[0]])
    first, again = find_clusters(vectors, 3), find_clusters(vectors, 3)
    assert np.bincount(first.number).tolist() == [80, 30, 10] and np.array_equal(first.number, again.number)
    assert first.similarity.shape == (120,) and first.similarity.max() <= 1.0001


def test_few_images_are_one_cluster() -> None:
    assert find_clusters(blobs(1, 4)[0]).count == 1
    assert find_clusters(np.ones((20, 3), np.float32), 4).count == 1


def test_more_clusters_than_images_are_refused() -> None:
    with pytest.raises(VitrailError, match="100 clusters cannot be made of 40 images: give a smaller --clusters"):
        find_clusters(blobs(2, 20)[0], 100)
    assert find_clusters(blobs(2, 20)[0], 40).count <= 40
