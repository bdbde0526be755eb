"""How long a run is: decided at its start, and kept with it. A resumed run is the same run.

Where minutes were given, the first measurement is rough (memory is new, caches are cold), and other programs come and
go. So the length is corrected all the way, by what the last steps and evaluations took. Each correction is written down
before it is used: a run that is killed and resumed goes through the same ones at the same steps.
"""

from __future__ import annotations

import dataclasses
import json
import math
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from vitrail.errors import VitrailError
from vitrail.files import read_text, write_text
from vitrail.training.optim.schedule import learning_rate

EVALUATIONS = 12  # during a run
SHARE = 0.2  # of the time that they may take; where one takes long there are fewer
CORRECT_EVERY = 0.02  # of the time; the first correction waits twice as long, because the first steps are slow
LARGEST_CHANGE = 2.0  # times the steps that are left: a few slow steps do not end a run, the next correction follows
LARGEST_ENDING = 0.35  # of the time, for the last measure and the report
ROUNDING = 1e-6  # of an evaluation: six that fit exactly are six
SLACK = 1.0  # seconds that a run may be late before it ends at once
_KINDS: dict[str, tuple[type, ...]] = {"int": (int,), "int | None": (int,), "float": (int, float), "str": (str,)}


@dataclass(frozen=True, kw_only=True)
class Length:
    """How many steps, and what follows from it; valid from one step on."""

    begins: int = 0
    seconds: float = 0.0  # of training, when this was decided
    steps: int
    warmup: int
    full_from: int  # the first step that sees all tokens
    evaluations: int  # in the whole run, evenly spread
    evaluated: int = 0  # of these, up to `begins`
    evaluated_at: int = 0  # the step of the last of them

    def learning_rate(self, step: int, peak: float) -> float:
        return learning_rate(step, self.steps, self.warmup, peak)

    def evaluations_by(self, done: int) -> int:
        """How many there have been after so many steps. Those that are left are spread evenly from the last one to the
        end; one that is overdue, because the end has come nearer, follows at once."""
        if done <= self.begins:
            return self.evaluated
        if done >= self.steps:
            return self.evaluations
        count, left, since = self.evaluated, self.evaluations - self.evaluated, self.evaluated_at
        if (self.begins + 1 - since) * left >= self.steps - since:
            count, left, since = count + 1, left - 1, self.begins + 1
        return count + (done - since) * left // (self.steps - since)

    def is_evaluated(self, done: int) -> bool:
        """After so many steps, from `begins` on. The end is always measured."""
        return done >= self.steps or self.evaluations_by(done) > self.evaluations_by(done - 1)


@dataclass(frozen=True, kw_only=True)
class StepTiming:
    """Seconds for the parts of a run, as measured."""

    few_tokens: float  # a step that keeps a part of the tokens
    all_tokens: float
    evaluation: float  # of the quick part of the held-out images, and of saving
    ending: float = 0.0  # the last, complete measure, and the report
    report: float = 0.0  # of that, what does not depend on the number of images
    final_slower: float = 1.0  # times as long for an image in the last measure, which is in float32
    image: float = 0.0  # of an evaluation: one image, without saving; 0 in plans of earlier runs

    def evaluations(self, seconds: float) -> int:
        """How many fit well into so much time."""
        return max(2, min(EVALUATIONS, int(SHARE * seconds / max(self.evaluation, 1e-9) + ROUNDING)))

    def scaled(self, slower: float, evaluation: float | None = None, image: float | None = None) -> StepTiming:
        """With steps that take so many times as long, and an evaluation and an image of it that take so long (None: as
        it was). The last measure is as slow as an evaluation's images. Slow steps alone say nothing of it: a run was
        once given up after three cold ones, because its end seemed to need all of the time. Nor does the time of a
        whole evaluation: of 9 images it was mostly saving, and 20 of 120 seconds were kept for nothing."""
        evaluation = self.evaluation if evaluation is None else evaluation
        longer = evaluation / self.evaluation if self.evaluation else 1.0
        if self.image:
            longer = 1.0 if image is None else image / self.image
        return replace(
            self,
            few_tokens=slower * self.few_tokens,
            all_tokens=slower * self.all_tokens,
            evaluation=evaluation,
            ending=self.report + longer * (self.ending - self.report),
            image=longer * self.image,
        )


@dataclass(frozen=True, kw_only=True)
class Plan:
    lengths: tuple[Length, ...]
    data: str  # fingerprint of the training images and their targets
    started: str  # when, and with which command: for the report
    command: str
    deadline: float = 0.0  # seconds from the first step to the end of the report; 0: the length is no matter of time
    timing: StepTiming | None = None  # "pace" in the file
    quick_images: int | None = None  # how many held-out images an evaluation on the way takes; None: the usual number
    teacher: str = ""  # its fingerprint, where there is one
    unlabelled: str = ""  # the fingerprint of the pictures without labels
    reasons: tuple[str, ...] = ()

    @property
    def last(self) -> Length:
        return self.lengths[-1]

    @property
    def steps(self) -> int:
        return self.last.steps

    @property
    def loop_seconds(self) -> float:
        """For the steps and the evaluations on the way."""
        return without_ending(self.deadline, self.timing.ending if self.timing is not None else 0.0)

    def at(self, step: int) -> Length:
        """The length that was planned when that step was made."""
        return next(length for length in reversed(self.lengths) if length.begins <= step)

    def learning_rate(self, step: int, peak: float) -> float:
        return self.at(step).learning_rate(step, peak)

    def is_evaluated(self, done: int) -> bool:
        """After so many steps. The end is always measured."""
        return self.at(done - 1).is_evaluated(done)

    def last_evaluation(self, done: int) -> int:
        """The step of the last evaluation up to `done`, or 0."""
        length = self.at(done - 1)
        steps = range(done, length.begins, -1)
        return next((step for step in steps if length.is_evaluated(step)), length.evaluated_at)

    def correction_is_due(self, done: int, seconds: float) -> bool:
        """Whether it is time to look again at how many steps there will be. Just before the end nothing is gained."""
        if not self.deadline or not self.last.begins < done < self.steps:
            return False
        if seconds > self.loop_seconds + SLACK:
            return True
        interval = CORRECT_EVERY * self.loop_seconds * (2 if len(self.lengths) == 1 else 1)
        return self.last.seconds + interval <= seconds <= (1 - 2 * CORRECT_EVERY) * self.loop_seconds

    def corrected(self, done: int, seconds: float, timing: StepTiming, keep_until: float, warmup: float) -> Plan:
        """With the length that fills what is left of the time, when steps and evaluations take as long as `timing`."""
        plan = replace(self, timing=timing)
        length = self.at(done - 1)
        left, before = plan.loop_seconds - seconds, length.steps - done
        evaluated = length.evaluations_by(done)
        remaining = (
            steps_within(left, timing, keep_until, done, evaluations=length.evaluations - evaluated) - done
            if left > 0
            else 1
        )
        if left > SLACK:
            remaining = min(max(remaining, int(before / LARGEST_CHANGE)), int(before * LARGEST_CHANGE))
        corrected = replace(
            length_of(done + max(1, remaining), keep_until, warmup, length.evaluations),
            begins=done,
            seconds=seconds,
            evaluated=evaluated,
            evaluated_at=self.last_evaluation(done),
        )
        return replace(plan, lengths=(*self.lengths, corrected))

    def write(self, path: Path) -> None:
        values = dataclasses.asdict(self)
        values["pace"] = values.pop("timing")
        write_text(path, json.dumps(values, indent=2) + "\n")

    @classmethod
    def read(cls, path: Path) -> Plan:
        try:
            values: dict[str, Any] = json.loads(read_text(path))
            lengths = tuple(Length(**_without_interval(length)) for length in values["lengths"])
            pace = values.pop("pace")
            timing = None if pace is None else StepTiming(**pace)
            if seconds := values.pop("seconds", 0.0):  # as earlier runs wrote it: without the ending
                values["deadline"] = seconds + (timing.ending if timing is not None else 0.0)
            plan = cls(**{**values, "lengths": lengths, "timing": timing, "reasons": tuple(values["reasons"])})
            plan.check()
            return plan
        except (ValueError, TypeError, KeyError, AttributeError, ArithmeticError, RecursionError) as error:
            raise VitrailError(f"{path} cannot be read ({error}): start the run anew with another --out") from None

    def check(self) -> None:
        """A ValueError where a file that someone edited gives no plan that can be followed."""
        for record in (self, *self.lengths, *([] if self.timing is None else [self.timing])):
            _check_types(record)
        begins = [length.begins for length in self.lengths]
        if not begins or begins[0] != 0 or begins != sorted(set(begins)):
            raise ValueError(f"its lengths begin at {begins[:5]}")
        if any(length.steps <= length.begins or length.evaluations < 1 for length in self.lengths):
            raise ValueError("it ends before it begins, or is never evaluated")
        if any(one.evaluated_at > one.begins or one.evaluated > one.evaluations for one in self.lengths):
            raise ValueError("it was evaluated after a step that was not made, or more often than planned")
        if self.deadline and (self.timing is None or min(self.timing.few_tokens, self.timing.all_tokens) <= 0):
            raise ValueError("it has a deadline, and no time of a step")
        if not all(isinstance(reason, str) for reason in self.reasons):
            raise ValueError("a reason is no text")


def _check_types(record: Any) -> None:
    for field in dataclasses.fields(record):
        value: Any = getattr(record, field.name)
        kinds = _KINDS.get(str(field.type))
        if kinds is None or (value is None and field.default is None):
            continue
        in_range = isinstance(value, str) or (isinstance(value, int | float) and 0 <= value < math.inf)
        if isinstance(value, bool) or not isinstance(value, kinds) or not in_range:
            raise ValueError(f"{field.name} is {str(value)[:40]!r}")


def _without_interval(length: dict[str, Any]) -> dict[str, Any]:
    """Earlier runs kept the steps between two evaluations instead of their number."""
    if "evaluate_every" not in length:
        return length
    every = length["evaluate_every"]
    kept = {name: value for name, value in length.items() if name != "evaluate_every"}
    evaluated = length["begins"] // every
    of_all = {"evaluations": -(-length["steps"] // every), "evaluated": evaluated, "evaluated_at": evaluated * every}
    return {**kept, **of_all}


def without_ending(deadline: float, ending: float) -> float:
    """The seconds for the loop. The end is made shorter rather than take most of the time."""
    return deadline - min(ending, LARGEST_ENDING * max(0.0, deadline))


def length_of(steps: int, keep_until: float, warmup: float, evaluations: int = EVALUATIONS) -> Length:
    """`keep_until`: part of the steps that see fewer tokens, `warmup`: part in which the learning rate rises."""
    return Length(
        steps=steps,
        warmup=round(warmup * steps),
        full_from=round(keep_until * steps),
        evaluations=evaluations,
    )


def steps_within(
    seconds: float, timing: StepTiming, keep_until: float, done: int = 0, evaluations: int = EVALUATIONS
) -> int:
    """How many steps a run has in all, when after `done` of them so many seconds and evaluations are left, and the
    first `keep_until` of all are the faster ones."""
    left = max(0.0, seconds - evaluations * timing.evaluation)
    # few (keep_until S - done) + all (1 - keep_until) S = left, where all of the fast ones may be done already
    mean = keep_until * timing.few_tokens + (1 - keep_until) * timing.all_tokens
    steps = (left + done * timing.few_tokens) / mean
    if steps * keep_until < done:
        steps = done + left / timing.all_tokens
    return max(done + 1, int(steps))
