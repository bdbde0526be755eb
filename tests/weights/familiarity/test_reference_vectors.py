"""Familiarity: distances that were worked out by hand, and the promise that 95 of 100 pictures of a kind pass."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from scipy import spatial

from vitrail.weights.familiarity.kept_vectors import LEAST_HELD_OUT, SHRINKAGE, UNFAMILIAR, KeptVectors
from vitrail.weights.familiarity.reference_vectors import MOST_BYTES, fit_familiarity, most_vectors


def cloud(count: int, seed: int, centre: int = 0) -> torch.Tensor:
    """Vectors around one axis of eight."""
    generator = torch.Generator().manual_seed(seed)
    return 4 * torch.eye(8)[centre] + torch.randn(count, 8, generator=generator)


def test_distances_by_hand() -> None:
    """Two unit vectors on either side of an axis: the variance is 0.36 along y, and 0 along x."""
    sides = np.array([[0.8, 0.6], [0.8, -0.6]] * 20, np.float16)
    kept = KeptVectors(sides, np.zeros(LEAST_HELD_OUT, np.float32))
    added = SHRINKAGE * 0.36 / 2
    pictures = np.array([[8.0, 6.0], [1.0, 0.0], [0.0, 3.0]], np.float32)  # their length does not count
    expected = [
        0.6 / math.sqrt(0.36 + added),
        0.2 / math.sqrt(added),
        math.sqrt(0.8**2 / added + 1 / (0.36 + added)),
    ]
    assert kept.distances(pictures).tolist() == pytest.approx(expected, rel=2e-2)  # float16 rounds 0.8 and 0.6


def test_the_distance_is_mahalanobis() -> None:
    """As scipy has it, with the shrunk covariance."""
    vectors = torch.nn.functional.normalize(cloud(500, 0), dim=1).half()
    rows = vectors.double().numpy()
    covariance = np.cov(rows.T, bias=True)
    inverse = np.linalg.inv(covariance + SHRINKAGE * covariance.diagonal().mean() * np.eye(8))
    pictures = cloud(5, 1, centre=3)
    unit = torch.nn.functional.normalize(pictures, dim=1).double().numpy()
    expected = [spatial.distance.mahalanobis(one, rows.mean(0), inverse) for one in unit]
    found = KeptVectors(vectors.numpy(), np.zeros(LEAST_HELD_OUT, np.float32)).distances(pictures.numpy())
    assert found.tolist() == pytest.approx(expected, rel=1e-4)


def test_the_score_is_the_share_of_held_out_pictures_that_are_at_most_as_near(monkeypatch) -> None:
    kept = KeptVectors(np.eye(2, dtype=np.float16), np.linspace(0.05, 0.95, 19, dtype=np.float32))
    monkeypatch.setattr(KeptVectors, "distances", lambda self, pooled: pooled[:, 0])
    # 19, 10 (0.5 itself counts) and 0 of 19 are at least as far, and each picture counts as one more
    assert kept.scores(np.array([[0.0], [0.5], [1.0]], np.float32)).tolist() == pytest.approx([1.0, 11 / 20, 1 / 20])


def test_vectors_that_are_all_the_same_do_no_harm() -> None:
    kept = fit_familiarity(torch.ones(30, 4), torch.ones(30, 4))
    assert kept is not None and np.isfinite(kept.distances(torch.rand(3, 4).numpy())).all()


def test_pictures_of_the_same_kind_pass_and_others_do_not() -> None:
    kept = fit_familiarity(cloud(300, 0), cloud(400, 1))
    assert kept is not None
    passing = (kept.scores(cloud(4000, 2).numpy()) >= UNFAMILIAR).mean()
    assert 0.92 < passing < 0.98
    assert (kept.scores(cloud(200, 3, centre=5).numpy()) < UNFAMILIAR).mean() > 0.95
    held_out = kept.scores(cloud(400, 1).numpy())
    assert (held_out >= UNFAMILIAR).mean() >= 1 - UNFAMILIAR


def test_what_is_kept_is_bounded_whatever_the_width() -> None:
    for width in (16, 192, 768, 1024):
        assert NEAR * most_vectors(width) * width <= MOST_BYTES
    assert most_vectors(192) == 1822
    kept = fit_familiarity(cloud(10**5, 0), cloud(30, 1))
    assert kept is not None and kept.vectors.dtype == np.float16
    assert kept.vectors.nbytes <= MOST_BYTES


NEAR = 2  # bytes of a float16


@pytest.mark.parametrize("held_out", [cloud(LEAST_HELD_OUT - 1, 1), cloud(40, 1).log()], ids=["few", "not finite"])
def test_nothing_is_kept_where_nothing_can_be_told(held_out: torch.Tensor) -> None:
    assert fit_familiarity(cloud(100, 0), held_out) is None
