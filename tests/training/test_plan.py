"""How long a run is, and how that is set right on the way."""

import pytest

from vitrail.errors import VitrailError
from vitrail.training.plan import Plan, StepTiming, length_of, steps_within

PACE = StepTiming(few_tokens=0.5, all_tokens=1.0, evaluation=1.0, ending=10.0)


def plan(**changes):
    values = {
        "lengths": (length_of(100, keep_until=0.7, warmup=0.05),),
        "data": "abc", "started": "now", "command": "vitrail train", "reasons": ("a", "b"),
    }  # fmt: skip
    return Plan(**{**values, **changes})


def test_a_plan_reads_back_the_same(tmp_path):
    timed = plan(seconds=100.0, timing=PACE).corrected(10, 9.0, 0.4, 0.7, 0.05)
    for one in (plan(), timed):
        one.write(tmp_path / "plan.json")
        assert Plan.read(tmp_path / "plan.json") == one
    (tmp_path / "plan.json").write_text("{")
    with pytest.raises(VitrailError, match="start the run anew"):
        Plan.read(tmp_path / "plan.json")


def spent(steps, done=0, evaluations=12.0):
    few = max(0, round(0.7 * steps) - done)
    return few * 0.5 + (steps - done - few) * 1.0 + evaluations


def test_steps_fill_the_time_with_both_kinds_of_steps_and_the_measuring():
    assert 598 <= spent(steps_within(600, PACE, keep_until=0.7)) <= 601
    assert steps_within(600, PACE, 0.0) == 588
    assert 398 <= spent(steps_within(400, PACE, 0.7, done=200), 200, 6.0) <= 401
    assert steps_within(0, PACE, 0.7, done=9) == 10
    late = steps_within(100, PACE, 0.7, done=600)  # nearly all of the fast ones are behind
    assert late == pytest.approx(694, abs=1)
    assert steps_within(1, PACE, 0.7) == 1


def test_a_faster_machine_than_thought_makes_a_longer_run():
    first = plan(seconds=600.0, timing=PACE, lengths=(length_of(steps_within(600, PACE, 0.7), 0.7, 0.05),))
    assert not first.correction_is_due(7, 500.0) and not first.correction_is_due(30, 23.0)
    assert first.correction_is_due(80, 24.0)
    second = first.corrected(80, 24.0, step_seconds=0.25, keep_until=0.7, warmup=0.05)
    assert second.steps == pytest.approx(2 * first.steps, rel=0.05)
    assert second.learning_rate(50, 1.0) == first.learning_rate(50, 1.0)  # what is behind stays
    assert second.at(79) == first.last and second.at(80) == second.last
    assert not second.correction_is_due(200, 60.0) and second.correction_is_due(400, 121.0)
    slower = first.corrected(80, 60.0, step_seconds=0.75, keep_until=0.7, warmup=0.05)
    assert slower.steps < first.steps
    assert not plan().correction_is_due(50, 1e9)


def test_evaluations():
    assert length_of(1200, 0.7, 0.05).evaluate_every == 100
    assert length_of(3, 0.7, 0.05).evaluate_every == 1
    one = plan()
    assert one.last.evaluate_every == 9 and one.last.full_from == 70
    assert one.is_evaluated(9) and one.is_evaluated(100) and not one.is_evaluated(31)


def test_evaluations_that_take_long_are_few():
    slow = StepTiming(few_tokens=3.0, all_tokens=3.0, evaluation=13.0)
    assert [slow.evaluations(seconds) for seconds in (30, 200, 600, 3600)] == [2, 3, 9, 12]
    steps = steps_within(200.0, slow, 0.0, evaluations=3)
    assert steps == 53
    length = length_of(steps, 0.0, 0.05, evaluations=3)
    assert sum(Plan.is_evaluated(plan(lengths=(length,)), done) for done in range(1, steps + 1)) == 3


def test_the_learning_rate_rises_and_ends_near_nothing():
    rates = [plan().learning_rate(step, 1.0) for step in range(100)]
    assert rates[0] == pytest.approx(1 / 6)
    assert max(rates) == rates[5] == 1.0
    assert 0 < rates[-1] < 1e-3
