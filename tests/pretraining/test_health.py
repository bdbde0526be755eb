"""The rank of an embedding, and what is said when a run goes wrong."""

from __future__ import annotations

import math

import pytest
import torch

from vitrail.pretraining.health import HealthScores, effective_rank, find_concerns


def test_rank_of_equal_directions_is_their_number():
    assert effective_rank(torch.eye(5)) == pytest.approx(5)
    assert effective_rank(torch.ones(6, 4)) == pytest.approx(1)


def test_rank_of_two_unequal_directions():
    """Singular values 3 and 1: shares 3/4 and 1/4, entropy 0.5623."""
    assert effective_rank(torch.diag(torch.tensor([3.0, 1.0]))) == pytest.approx(math.exp(0.56233514))


def history(losses, ranks=(), **last) -> list[dict]:
    rows = [{"step": step + 1, "loss": loss} for step, loss in enumerate(losses)]
    for number, rank in enumerate(ranks, 1):
        step = round(number * len(losses) / len(ranks))
        rows.append({"step": step, "validation": {"rank": rank}})
    rows[-1].get("validation", {}).update(last)
    return rows


FALLING = [5 - step / 100 for step in range(100)]


@pytest.mark.parametrize(
    ("rows", "resting", "kind", "cure"),
    [
        (history([8.318] * 100, [20, 20]), 8.3178, "resting", "teacher_temperature = 0.02"),
        (history(FALLING, [40, 30, 4]), None, "collapsed", "coding_rate"),
        (history(FALLING, [1.2, 1.1]), None, "collapsed", "fell from 1.2 to 1.1"),
        (history(FALLING, [1.1, 1.2]), None, "collapsed", "embedding is 1.2"),
        (history(FALLING, [20, 20], prototypes=1.1), 8.3, "one-prototype", "simdino"),
        (history(FALLING, [20, 20], entropy=0.99), 8.3, "entropy", "lower pretrain.teacher_temperature"),
        (history(FALLING, [20, 20], entropy=0.001), 8.3, "entropy", "raise pretrain.teacher_temperature"),
        (history([-1.5] * 100, [20, 20]), None, "stalled", "higher train.lr"),
    ],
)
def test_what_goes_wrong_is_said_with_what_to_change(rows, resting, kind, cure):
    found = dict(find_concerns(rows, 100, resting, "simdino"))
    assert kind in found and cure in found[kind]
    assert "\n" not in found[kind]


def test_nothing_is_said_of_a_healthy_run_or_too_early():
    assert find_concerns(history(FALLING, [5, 20, 30], entropy=0.4, prototypes=50), 100, 8.3, "dino") == []
    assert find_concerns(history([8.318] * 5, [1.0]), 100, 8.3178, "dino") == []
    assert find_concerns([], 100, None, "mae") == []


def test_scores_in_words():
    scores = HealthScores(labelled=True)
    assert scores.main_metric == "knn" and scores.show("knn", 0.5312) == "53.1 %"
    assert HealthScores(labelled=False).main_metric == "rank" and scores.show("rank", 41.234) == "41.23"
    assert scores.title_of("loss") == "Loss" and scores.meaning_of("rank")
