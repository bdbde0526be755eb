"""k-NN with DINO's weights, against scikit-learn's with the same weights."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from sklearn.neighbors import KNeighborsClassifier, KNeighborsRegressor

from vitrail.errors import VitrailError
from vitrail.search.knn_probe import as_outputs, knn_means, target_rows
from vitrail.tasks.registry import task_for

RNG = np.random.default_rng(0)
VECTORS, QUERIES = (RNG.normal(size=(count, 6)).astype(np.float32) for count in (80, 30))
CLASSES, NUMBERS = RNG.integers(3, size=80), RNG.normal(size=(80, 2)).astype(np.float32)


def weights(distance: np.ndarray) -> np.ndarray:
    return np.exp((1 - distance) / 0.07)


def test_probabilities_of_classes() -> None:
    rows = target_rows(torch.from_numpy(CLASSES), task_for("classify", ["a", "b", "c"]))
    reference = KNeighborsClassifier(20, metric="cosine", weights=weights).fit(VECTORS, CLASSES)
    found = knn_means(VECTORS, rows, QUERIES)
    np.testing.assert_allclose(found, reference.predict_proba(QUERIES), atol=1e-5)
    np.testing.assert_allclose(found.sum(1), 1, atol=1e-5)


def test_means_of_numbers() -> None:
    reference = KNeighborsRegressor(5, metric="cosine", weights=weights).fit(VECTORS, NUMBERS)
    np.testing.assert_allclose(knn_means(VECTORS, NUMBERS, QUERIES, 5), reference.predict(QUERIES), atol=1e-5)


@pytest.mark.parametrize(("task", "means"), [("classify", [[0.2, 0.8]]), ("multilabel", [[0.2, 0.9]])])
def test_outputs_mean_the_same_probabilities(task: str, means: list[list[float]]) -> None:
    asked = task_for(task, ["a", "b"])
    answer = asked.answer(as_outputs(np.array(means, np.float32), asked))[0]
    assert {guess["label"]: round(guess["probability"], 4) for guess in answer["top"]} == dict(
        zip("ab", means[0], strict=True)
    )


def test_a_vote_of_nobody_is_refused() -> None:
    with pytest.raises(VitrailError, match="at least one image"):
        knn_means(VECTORS[:0], NUMBERS[:0], QUERIES)
