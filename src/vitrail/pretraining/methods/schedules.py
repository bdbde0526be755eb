"""How momentum, temperature and weight decay go over a run: functions of the step, the same in a resumed run."""

from __future__ import annotations

import math

MOMENTUM = 0.996  # of the teacher at the start, as the paper has it
LEAST = 0.98  # below which a teacher runs after the student, and both onto one prototype
SHARE = 0.02  # of the run: a teacher never averages over more than that at the start, so that a short run has one too


def cosine(step: int, steps: int, first: float, last: float) -> float:
    """From `first` in step 0 along half a cosine towards `last`, which step `steps` would have."""
    return last + 0.5 * (first - last) * (1 + math.cos(math.pi * min(step, steps) / max(steps, 1)))


def linear(step: int, steps: int, first: float, last: float) -> float:
    """From `first` in step 0 to `last` in step `steps`, and `last` from there on."""
    return first + (last - first) * min(1.0, step / max(steps, 1))


def first_momentum(steps: int) -> float:
    """The teacher's momentum at the start of a run of so many steps.

    0.996 averages over 250 steps, which is nothing in the paper's 125,000. Of a run of a few thousand it would be so
    much that the teacher is still half its random start when the run is half over.
    """
    return min(MOMENTUM, max(LEAST, 1 - 1 / max(1.0, SHARE * steps)))
