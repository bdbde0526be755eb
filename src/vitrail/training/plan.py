"""How long a run is: decided once, at its start, and kept with it. A resumed run is the same run."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vitrail.errors import VitrailError
from vitrail.files import replacing
from vitrail.training.schedule import learning_rate

EVALUATIONS = 12  # during a run, and at least one an epoch where epochs are long
RESERVE = 0.01  # of the time, for what was not measured


@dataclass(frozen=True, kw_only=True)
class Plan:
    steps: int
    steps_per_epoch: int
    warmup: int  # steps
    full_from: int  # the first step that sees all tokens
    evaluate_every: int
    data: str  # fingerprint of the training images and their targets
    started: str  # when, and with which command: for the report
    command: str
    reasons: tuple[str, ...] = ()

    def learning_rate(self, step: int, peak: float) -> float:
        return learning_rate(step, self.steps, self.warmup, peak)

    def is_evaluated(self, done: int) -> bool:
        """After so many steps. The end is always measured."""
        return done == self.steps or done % self.evaluate_every == 0

    def write(self, path: Path) -> None:
        with replacing(path) as temporary:
            temporary.write_text(json.dumps(dataclasses.asdict(self), indent=2) + "\n", encoding="utf-8")

    @classmethod
    def read(cls, path: Path) -> Plan:
        try:
            values: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
            return cls(**{**values, "reasons": tuple(values["reasons"])})
        except (OSError, ValueError, TypeError, KeyError) as error:
            raise VitrailError(f"{path} cannot be read ({error}): start the run anew with another --out") from None


@dataclass(frozen=True, kw_only=True)
class Pace:
    """What a short measurement at the start found, in seconds."""

    few_tokens: float  # a step that keeps a part of the tokens
    all_tokens: float
    evaluation: float  # of the quick part of the held-out images
    ending: float  # the last, complete measure, and the report


def steps_within(seconds: float, pace: Pace, keep_until: float) -> int:
    """How many steps fit, where the first `keep_until` of them are the faster ones."""
    step = keep_until * pace.few_tokens + (1 - keep_until) * pace.all_tokens
    left = seconds * (1 - RESERVE) - pace.ending - EVALUATIONS * pace.evaluation
    return max(1, int(left / step))


def evaluation_interval(steps: int, steps_per_epoch: int) -> int:
    """Whole epochs where there are many, else parts of the run."""
    interval = max(1, round(steps / EVALUATIONS))
    if interval > steps_per_epoch:
        return round(interval / steps_per_epoch) * steps_per_epoch
    return interval
