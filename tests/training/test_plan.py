"""How long a run is."""

import pytest

from vitrail.errors import VitrailError
from vitrail.training.plan import Pace, Plan, evaluation_interval, steps_within


def plan(**changes):
    values = {
        "steps": 100, "steps_per_epoch": 10, "warmup": 5, "full_from": 70, "evaluate_every": 30,
        "data": "abc", "started": "now", "command": "vitrail train", "reasons": ("a", "b"),
    }  # fmt: skip
    return Plan(**{**values, **changes})


def test_a_plan_reads_back_the_same(tmp_path):
    plan().write(tmp_path / "plan.json")
    assert Plan.read(tmp_path / "plan.json") == plan()
    (tmp_path / "plan.json").write_text("{")
    with pytest.raises(VitrailError, match="start the run anew"):
        Plan.read(tmp_path / "plan.json")


def test_steps_fill_the_time_with_both_kinds_of_steps_and_the_measuring():
    pace = Pace(few_tokens=0.5, all_tokens=1.0, evaluation=1.0, ending=10.0)
    steps = steps_within(600, pace, keep_until=0.7)
    spent = 0.7 * steps * 0.5 + 0.3 * steps * 1.0 + 12 * 1.0 + 10.0
    assert 0.97 * 600 < spent <= 600
    assert steps_within(600, pace, 0.0) == int((594 - 22) / 1.0)
    assert steps_within(1, pace, 0.7) == 1


def test_evaluations_fall_on_epochs_where_there_are_many():
    assert evaluation_interval(1200, 20) == 100
    assert evaluation_interval(1250, 20) % 20 == 0
    assert evaluation_interval(24, 100) == 2
    assert evaluation_interval(3, 1) == 1
    assert plan().is_evaluated(30) and plan().is_evaluated(100) and not plan().is_evaluated(31)


def test_the_learning_rate_rises_and_ends_near_nothing():
    rates = [plan().learning_rate(step, 1.0) for step in range(100)]
    assert rates[0] == pytest.approx(1 / 6)
    assert max(rates) == rates[5] == 1.0
    assert 0 < rates[-1] < 1e-3
