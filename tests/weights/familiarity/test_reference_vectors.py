"""Familiarity: distances that were worked out by hand, and the promise that 95 of 100 pictures of a kind pass."""

from __future__ import annotations

import pytest
import torch

from vitrail.weights.familiarity.kept_vectors import LEAST_HELD_OUT, UNFAMILIAR
from vitrail.weights.familiarity.reference_vectors import (
    MOST_BYTES,
    Familiarity,
    fit_familiarity,
    most_vectors,
    nearest_distances,
)


def cloud(count: int, seed: int, centre: int = 0) -> torch.Tensor:
    """Vectors around one axis of eight."""
    generator = torch.Generator().manual_seed(seed)
    return 4 * torch.eye(8)[centre] + torch.randn(count, 8, generator=generator)


def test_distances_by_hand() -> None:
    rows = torch.eye(4)[[0, 0, 1, 1, 1, 2]]
    # cosines with the rows: 0.6, 0.6, 0.8, 0.8, 0.8, 0; the five nearest have a mean of 0.72
    assert nearest_distances(torch.tensor([[3.0, 4.0, 0.0, 0.0]]), rows).tolist() == pytest.approx([0.28])
    # where the first row is the vector itself, it does not count: (1 + 0 + 0 + 0 + 0) / 5
    alone = nearest_distances(torch.eye(4)[:1], rows, torch.tensor([0]))
    assert alone.tolist() == pytest.approx([0.8])


def test_the_score_is_the_share_of_held_out_pictures_that_are_at_most_as_near() -> None:
    kept = Familiarity(torch.eye(2).half()[:1].repeat(5, 1), torch.linspace(0.05, 0.95, 19))
    angles = torch.tensor([1.0, 0.5, 0.0])  # cosines: distances 0, 0.5 and 1
    pictures = torch.stack([angles, (1 - angles**2).sqrt()], dim=1)
    # 19, 10 (0.5 itself counts) and 0 of 19 are at least as far, and each picture counts as one more
    assert kept.scores(pictures).tolist() == pytest.approx([1.0, 11 / 20, 1 / 20])


def test_pictures_of_the_same_kind_pass_and_others_do_not() -> None:
    kept = fit_familiarity(cloud(300, 0), cloud(400, 1))
    assert kept is not None
    passing = (kept.scores(cloud(4000, 2)) >= UNFAMILIAR).double().mean()
    assert 0.92 < passing < 0.98
    assert (kept.scores(cloud(200, 3, centre=5)) < UNFAMILIAR).double().mean() > 0.95
    held_out = kept.scores(cloud(400, 1))
    assert (held_out >= UNFAMILIAR).double().mean() >= 1 - UNFAMILIAR


def test_what_is_kept_is_bounded_whatever_the_width() -> None:
    for width in (16, 192, 768, 1024):
        assert NEAR * most_vectors(width) * width <= MOST_BYTES
    assert most_vectors(192) == 1822
    kept = fit_familiarity(cloud(10**5, 0), cloud(30, 1))
    assert kept is not None and kept.vectors.dtype == torch.float16
    assert kept.vectors.numel() * 2 <= MOST_BYTES


NEAR = 2  # bytes of a float16


@pytest.mark.parametrize("held_out", [cloud(LEAST_HELD_OUT - 1, 1), cloud(40, 1).log()], ids=["few", "not finite"])
def test_nothing_is_kept_where_nothing_can_be_told(held_out: torch.Tensor) -> None:
    assert fit_familiarity(cloud(100, 0), held_out) is None
