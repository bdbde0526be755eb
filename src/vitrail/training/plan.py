"""How long a run is: decided at its start, and kept with it. A resumed run is the same run.

Where minutes were given, the first measurement is rough (memory is new, caches are cold), so the length is set right a
few times on the way. Each correction is written down before it is used: a run that is killed and resumed goes through
the same ones at the same steps.
"""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vitrail.errors import VitrailError
from vitrail.files import write_text
from vitrail.training.optim.schedule import learning_rate

EVALUATIONS = 12  # during a run
SHARE = 0.2  # of the time that they may take; where one takes long there are fewer
CORRECTED_AT = (0.04, 0.2, 0.5, 0.85)  # parts of the time; at the last, all tokens are there


@dataclass(frozen=True, kw_only=True)
class Length:
    """How many steps, and what follows from it; valid from one step on."""

    begins: int = 0
    steps: int
    warmup: int
    full_from: int  # the first step that sees all tokens
    evaluate_every: int

    def learning_rate(self, step: int, peak: float) -> float:
        return learning_rate(step, self.steps, self.warmup, peak)


@dataclass(frozen=True, kw_only=True)
class StepTiming:
    """Seconds for the parts of a run, as measured."""

    few_tokens: float  # a step that keeps a part of the tokens
    all_tokens: float
    evaluation: float  # of the quick part of the held-out images
    ending: float = 0.0  # the last, complete measure, and the report

    def evaluations(self, seconds: float) -> int:
        """How many fit well into so much time."""
        return max(2, min(EVALUATIONS, int(SHARE * seconds / max(self.evaluation, 1e-9))))


@dataclass(frozen=True, kw_only=True)
class Plan:
    lengths: tuple[Length, ...]
    data: str  # fingerprint of the training images and their targets
    started: str  # when, and with which command: for the report
    command: str
    seconds: float = 0.0  # for the loop, its evaluations included; 0: the length is not a matter of time
    timing: StepTiming | None = None  # "pace" in the file
    reasons: tuple[str, ...] = ()

    @property
    def last(self) -> Length:
        return self.lengths[-1]

    @property
    def steps(self) -> int:
        return self.last.steps

    def at(self, step: int) -> Length:
        """The length that was planned when that step was made."""
        return next(length for length in reversed(self.lengths) if length.begins <= step)

    def learning_rate(self, step: int, peak: float) -> float:
        return self.at(step).learning_rate(step, peak)

    def is_evaluated(self, done: int) -> bool:
        """After so many steps. The end is always measured."""
        return done == self.steps or done % self.at(done - 1).evaluate_every == 0

    def correction_is_due(self, done: int, seconds: float) -> bool:
        """Whether so many steps and seconds are enough to know the time of a step better."""
        corrections = len(self.lengths) - 1
        if not self.seconds or corrections >= len(CORRECTED_AT) or done < self.last.begins + 8 or done >= self.steps:
            return False
        return seconds >= CORRECTED_AT[corrections] * self.seconds

    def corrected(self, done: int, seconds: float, step_seconds: float, keep_until: float, warmup: float) -> Plan:
        """With the length that fills what is left of the time, when a step of now takes `step_seconds`."""
        assert self.timing is not None
        few = done < self.last.full_from
        slower = step_seconds / (self.timing.few_tokens if few else self.timing.all_tokens)
        timing = StepTiming(
            few_tokens=slower * self.timing.few_tokens,
            all_tokens=slower * self.timing.all_tokens,
            evaluation=slower * self.timing.evaluation,
            ending=self.timing.ending,
        )
        times = self.timing.evaluations(self.seconds)
        steps = steps_within(self.seconds - seconds, timing, keep_until, done, times)
        length = length_of(steps, keep_until, warmup, begins=done, evaluations=times)
        return dataclasses.replace(self, lengths=(*self.lengths, length))

    def write(self, path: Path) -> None:
        values = dataclasses.asdict(self)
        values["pace"] = values.pop("timing")
        write_text(path, json.dumps(values, indent=2) + "\n")

    @classmethod
    def read(cls, path: Path) -> Plan:
        try:
            values: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
            lengths = tuple(Length(**length) for length in values["lengths"])
            pace = values.pop("pace")
            timing = None if pace is None else StepTiming(**pace)
            return cls(**{**values, "lengths": lengths, "timing": timing, "reasons": tuple(values["reasons"])})
        except (OSError, ValueError, TypeError, KeyError) as error:
            raise VitrailError(f"{path} cannot be read ({error}): start the run anew with another --out") from None


def length_of(steps: int, keep_until: float, warmup: float, begins: int = 0, evaluations: int = EVALUATIONS) -> Length:
    """`keep_until`: part of the steps that see fewer tokens, `warmup`: part in which the learning rate rises."""
    return Length(
        begins=begins,
        steps=steps,
        warmup=round(warmup * steps),
        full_from=round(keep_until * steps),
        evaluate_every=max(1, -(-steps // evaluations)),
    )


def steps_within(
    seconds: float, timing: StepTiming, keep_until: float, done: int = 0, evaluations: int = EVALUATIONS
) -> int:
    """How many steps a run has in all, when after `done` of them so many seconds are left, and the first `keep_until`
    of all are the faster ones."""
    left = max(0.0, seconds - evaluations * timing.evaluation * (1 - 0.5 * (done > 0)))
    # few (keep_until S - done) + all (1 - keep_until) S = left, where all of the fast ones may be done already
    mean = keep_until * timing.few_tokens + (1 - keep_until) * timing.all_tokens
    steps = (left + done * timing.few_tokens) / mean
    if steps * keep_until < done:
        steps = done + left / timing.all_tokens
    return max(done + 1, int(steps))
