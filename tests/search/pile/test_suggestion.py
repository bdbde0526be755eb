"""What is suggested: uncertain, not twice the same, not what is labelled."""

from __future__ import annotations

import numpy as np
import pytest

from tests.search.pile.blobs import blobs
from vitrail.search.pile import suggestion
from vitrail.search.pile.suggestion import choose_images


def test_every_cluster_gets_one_before_any_gets_two() -> None:
    vectors, cluster = blobs(6, 40)
    assert sorted(cluster[choose_images(vectors, 6)]) == list(range(6))


def test_copies_are_suggested_once() -> None:
    vectors = np.repeat(blobs(3, 1)[0], 30, axis=0)
    chosen = choose_images(vectors, 3)
    assert sorted(place // 30 for place in chosen) == [0, 1, 2]


def test_where_the_model_is_unsure_comes_first() -> None:
    vectors, cluster = blobs(5, 40)
    unsure = np.where(cluster == 3, 0.9, 0.01)
    assert set(cluster[choose_images(vectors, 4, unsure)][:3]) == {3}


def test_what_is_labelled_is_left_alone() -> None:
    vectors, cluster = blobs(5, 40)
    chosen = choose_images(vectors, 3, labelled=vectors[(cluster < 2)])
    assert sorted(cluster[chosen]) == [2, 3, 4]


def test_a_lone_oddity_is_not_worth_a_label_yet() -> None:
    vectors = np.concatenate([blobs(2, 40)[0], np.eye(32, dtype=np.float32)[:1] * 5])
    assert 80 not in choose_images(vectors, 2)


def test_large_piles_are_drawn_from(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(suggestion, "DEMAND", 60)
    monkeypatch.setattr(suggestion, "CANDIDATES", 80)
    vectors, cluster = blobs(4, 100)
    unsure = np.where(cluster == 2, 1.0, 0.0)
    chosen = choose_images(vectors, 10, unsure)
    assert len(set(chosen)) == 10 and (cluster[chosen[:3]] == 2).all()
    assert chosen == choose_images(vectors, 10, unsure) and chosen != choose_images(vectors, 10, unsure, seed=1)


def test_no_more_than_there_are() -> None:
    assert sorted(choose_images(blobs(1, 5)[0], 50)) == [0, 1, 2, 3, 4]
