"""How long a run is, and how that is set right on the way."""

import json
from dataclasses import replace
from itertools import pairwise

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
    timed = plan(deadline=100.0, timing=PACE, quick_images=50).corrected(10, 9.0, PACE.scaled(0.8), 0.7, 0.05)
    for one in (plan(), timed):
        one.write(tmp_path / "plan.json")
        assert Plan.read(tmp_path / "plan.json") == one
    (tmp_path / "plan.json").write_text("{")
    with pytest.raises(VitrailError, match="start the run anew"):
        Plan.read(tmp_path / "plan.json")


def test_a_plan_of_an_earlier_run_is_read(tmp_path):
    """It kept the steps between two evaluations, and the time without the ending."""
    lengths = [
        {"begins": 0, "steps": 100, "warmup": 5, "full_from": 70, "evaluate_every": 9},
        {"begins": 30, "steps": 120, "warmup": 6, "full_from": 84, "evaluate_every": 10},
    ]
    pace = {"few_tokens": 0.5, "all_tokens": 1.0, "evaluation": 1.0, "ending": 10.0}
    rest = {"data": "abc", "started": "now", "command": "vitrail train", "reasons": []}
    (tmp_path / "plan.json").write_text(json.dumps({"lengths": lengths, "seconds": 90.0, "pace": pace, **rest}))
    old = Plan.read(tmp_path / "plan.json")
    assert (old.deadline, old.loop_seconds, old.steps) == (100.0, 90.0, 120)
    assert [done for done in range(31, 121) if old.is_evaluated(done)] == list(range(40, 121, 10))
    (tmp_path / "plan.json").write_text(json.dumps({"lengths": lengths, "seconds": 0.0, "pace": None, **rest}))
    assert Plan.read(tmp_path / "plan.json").deadline == 0.0


def spent(steps, done=0, evaluations=12.0):
    few = max(0, round(0.7 * steps) - done)
    return few * 0.5 + (steps - done - few) * 1.0 + evaluations


def test_steps_fill_the_time_with_both_kinds_of_steps_and_the_measuring():
    assert 598 <= spent(steps_within(600, PACE, keep_until=0.7)) <= 601
    assert steps_within(600, PACE, 0.0) == 588
    assert 398 <= spent(steps_within(400, PACE, 0.7, done=200, evaluations=6), 200, 6.0) <= 401
    assert steps_within(0, PACE, 0.7, done=9) == 10
    late = steps_within(100, PACE, 0.7, done=600, evaluations=6)  # nearly all of the fast ones are behind
    assert late == pytest.approx(694, abs=1)
    assert steps_within(1, PACE, 0.7) == 1


def timed_plan(seconds=600.0, timing=PACE):
    evaluations = timing.evaluations(seconds)
    length = length_of(steps_within(seconds, timing, 0.7, evaluations=evaluations), 0.7, 0.05, evaluations)
    return plan(deadline=seconds + timing.ending, timing=timing, lengths=(length,))


def test_a_faster_machine_than_thought_makes_a_longer_run():
    first = timed_plan()
    assert not first.correction_is_due(30, 23.0) and first.correction_is_due(80, 24.0)
    second = first.corrected(80, 24.0, PACE.scaled(0.5), keep_until=0.7, warmup=0.05)
    assert second.steps == pytest.approx(2 * first.steps, rel=0.05)
    assert second.learning_rate(50, 1.0) == first.learning_rate(50, 1.0)  # what is behind stays
    assert second.at(79) == first.last and second.at(80) == second.last
    assert not second.correction_is_due(100, 30.0) and second.correction_is_due(130, 37.0)
    slower = first.corrected(80, 60.0, PACE.scaled(1.5), keep_until=0.7, warmup=0.05)
    assert slower.steps < first.steps
    assert not plan().correction_is_due(50, 1e9)


def test_a_few_slow_steps_do_not_end_a_run():
    """The first steps on a busy machine were once 14 times slower than measured, and nothing came after them."""
    first = timed_plan()
    slow = first.corrected(9, 24.0, PACE.scaled(14.0), keep_until=0.7, warmup=0.05)
    assert slow.steps > 0.45 * first.steps
    assert slow.correction_is_due(40, 40.0)
    well = slow.corrected(40, 40.0, PACE, 0.7, 0.05).corrected(70, 55.0, PACE, 0.7, 0.05)
    assert well.steps == pytest.approx(first.steps, rel=0.1)


def test_slow_steps_do_not_make_the_end_eat_the_run():
    """Three cold steps, 24 times slower than measured, of a run whose last measure takes a fifth of its time."""
    timing = StepTiming(few_tokens=0.13, all_tokens=0.13, evaluation=5.4, ending=31.0)
    length = length_of(steps_within(65.0, timing, 0.0, evaluations=3), 0.0, 0.05, 3)
    first = plan(deadline=96.0, timing=timing, lengths=(length,))
    slow = first.corrected(3, 12.1, timing.scaled(24.0), 0.0, 0.05)
    assert slow.steps > 0.45 * first.steps and slow.loop_seconds == first.loop_seconds
    late = first.corrected(3, 12.1, timing.scaled(24.0, evaluation=130.0), 0.0, 0.05)  # and evaluations as slow
    assert late.loop_seconds == pytest.approx(0.65 * 96) and late.steps > 0.4 * first.steps


def test_the_report_does_not_grow_with_slow_evaluations():
    """Of 25 images an evaluation is short, and saving after it makes it many times longer."""
    timing = StepTiming(few_tokens=0.05, all_tokens=0.05, evaluation=0.02, ending=4.02, report=4.0)
    assert timing.scaled(1.0, evaluation=0.2).ending == pytest.approx(4.2)


def test_the_end_does_not_grow_with_what_saving_takes():
    """Of 9 images an evaluation is mostly saving; the last measure, of 800 images, is as slow as the 9 were."""
    timing = StepTiming(
        few_tokens=0.2, all_tokens=0.2, evaluation=0.045, ending=12.0, report=4.0, final_slower=2.0, image=0.005
    )
    late = timing.scaled(1.0, evaluation=0.15, image=0.006)
    assert late.evaluation == 0.15 and late.ending == pytest.approx(4 + 1.2 * 8) and late.image == pytest.approx(0.006)
    assert timing.scaled(3.0).ending == 12.0


class Machine:
    """A clock that steps and evaluations move on; `slower(seconds)` is how many times as long as planned they take."""

    def __init__(self, slower, pace=PACE):
        self.slower, self.pace, self.seconds, self.evaluated = slower, pace, 0.0, []

    def work(self, planned):
        took = planned * self.slower(self.seconds)
        self.seconds += took
        return took

    def run(self, current):
        """The loop's part of a run, then its ending. Returns when all of it is over."""
        done, timing, evaluation = 0, self.pace, None
        while done < current.steps:
            few = done < current.at(done).full_from
            planned = self.pace.few_tokens if few else self.pace.all_tokens
            timing = self.pace.scaled(self.work(planned) / planned, evaluation)
            done += 1
            if current.is_evaluated(done):
                evaluation = self.work(self.pace.evaluation)
                self.evaluated.append(done)
            if done < current.steps and current.correction_is_due(done, self.seconds):
                current = current.corrected(done, self.seconds, timing, 0.7, 0.05)
        self.work(self.pace.ending)
        return self.seconds


@pytest.mark.parametrize(
    ("slower", "off"),
    [
        (lambda seconds: 1.0, 0.01),
        (lambda seconds: 1.6, 0.02),  # all the time
        (lambda seconds: 0.5, 0.02),
        (lambda seconds: 14.0 if seconds < 30 else 1.0, 0.05),  # a cold start
        (lambda seconds: 2.0 if seconds > 305 else 1.0, 0.05),  # another program takes half of the machine
        (lambda seconds: 2.0 if seconds > 500 else 1.0, 0.05),
        (lambda seconds: 2.0 if int(seconds / 60) % 2 else 1.0, 0.05),  # and comes and goes
    ],
)
def test_the_time_that_was_given_is_the_time_it_takes(slower, off):
    machine = Machine(slower)
    assert machine.run(timed_plan()) == pytest.approx(610.0, rel=off)
    assert len(machine.evaluated) >= 6
    apart = [b - a for a, b in pairwise([0, *machine.evaluated[:-1]])]  # the end comes when it comes
    assert min(apart) >= 0.45 * machine.evaluated[-1] / 12


@pytest.mark.parametrize("begins", [30, 200, 305, 400, 500])
@pytest.mark.parametrize("times", [0.5, 2.0, 3.0])
def test_none_of_six_evaluations_is_lost_where_the_end_moves(begins, times):
    """Five were made, where another program took half of the machine."""
    pace = replace(PACE, evaluation=20.0)
    machine = Machine(lambda seconds: times if seconds > begins else 1.0, pace)
    machine.run(timed_plan(timing=pace))
    apart = [b - a for a, b in pairwise([0, *machine.evaluated])]
    assert len(machine.evaluated) == 6 and max(apart) < 0.5 * machine.evaluated[-1]


def test_evaluations():
    def evaluated(one):
        return [done for done in range(1, one.steps + 1) if one.is_evaluated(done)]

    assert evaluated(plan(lengths=(length_of(1200, 0.7, 0.05),))) == list(range(100, 1201, 100))
    assert evaluated(plan(lengths=(length_of(3, 0.7, 0.05),))) == [1, 2, 3]
    assert len(evaluated(plan())) == 12 and evaluated(plan())[-1] == 100 and plan().last.full_from == 70


def test_a_corrected_plan_skips_no_evaluation():
    """Where the steps between evaluations grow with every correction, `done` may never be a multiple of them."""
    timing = StepTiming(few_tokens=1.0, all_tokens=1.0, evaluation=0.0)
    current = plan(deadline=2000.0, timing=timing, lengths=(length_of(100, 0.0, 0.05),))
    evaluated, done = [], 0
    while done < min(current.steps, 3000):
        done += 1
        if current.is_evaluated(done):
            evaluated.append(done)
        if done % 7 == 0 and done < current.steps:
            current = current.corrected(done, float(done), timing, 0.0, 0.05)
    assert done == current.steps and len(evaluated) >= 8
    assert max(b - a for a, b in pairwise([*evaluated, done])) <= done / 8


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


TIMED = plan(deadline=100.0, timing=PACE, quick_images=50)


@pytest.mark.parametrize(
    ("place", "value"),
    [
        (("lengths",), []), (("lengths",), 3), (("lengths",), [[]]), (("lengths", 0), {}),
        (("lengths", 0, "steps"), 0), (("lengths", 0, "steps"), "100"), (("lengths", 0, "steps"), 1.5),
        (("lengths", 0, "steps"), True), (("lengths", 0, "begins"), 3), (("lengths", 0, "evaluations"), 0),
        (("lengths", 0, "evaluated"), 13), (("lengths", 0, "evaluated_at"), 1), (("lengths", 0, "evaluated_at"), 100),
        (("lengths", 0, "warmup"), None), (("lengths", 0, "more"), 1), (("pace",), 3), (("pace",), None),
        (("pace", "all_tokens"), 0), (("pace", "few_tokens"), "fast"), (("pace", "image"), -1.0),
        (("pace", "evaluation"), float("nan")),
        (("deadline",), float("inf")), (("deadline",), "soon"), (("reasons",), 3), (("reasons",), [3]),
        (("command",), None), (("data",), 3), (("quick_images",), "many"), (("quick_images",), -3), (("new",), 1),
        ((), []), ((), None),
    ],
)  # fmt: skip
def test_an_edited_plan_is_refused_in_a_sentence(tmp_path, place, value):
    TIMED.write(tmp_path / "plan.json")
    content = {"": json.loads((tmp_path / "plan.json").read_text())}
    *way, last = "", *place
    holder = content
    for key in way:
        holder = holder[key]
    holder[last] = value
    (tmp_path / "plan.json").write_text(json.dumps(content[""]))
    with pytest.raises(VitrailError, match="plan.json cannot be read") as caught:
        Plan.read(tmp_path / "plan.json")
    assert "\n" not in str(caught.value) and len(str(caught.value)) < 300


@pytest.mark.parametrize("content", [b"[" * 200_000, b"\xff", b"", b"9" * 5000])
def test_a_plan_that_is_no_json(tmp_path, content):
    (tmp_path / "plan.json").write_bytes(content)
    with pytest.raises(VitrailError, match="plan.json"):
        Plan.read(tmp_path / "plan.json")
