"""How fast a step is here: a few real ones, on a copy that is thrown away."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from itertools import count

from vitrail.training.loop import Loop
from vitrail.training.plan import Pace

SHARE = 0.005  # of the time, for each kind of step
LONGEST = 10.0  # seconds
WARM_UP = 2  # steps that do not count: memory is new, threads start
FEWEST = 4
ENDING = 4.0  # seconds for intervals and the report, beside running the model


def measured_pace(loop: Loop, budget: float, evaluations: float) -> Pace:
    """Seconds of a step with some and with all tokens, of a measurement, and of the `evaluations` at the end."""
    seconds = min(SHARE * budget, LONGEST)
    whole = loop.plan
    few = all_tokens = 0.0
    for full in (True, False):
        if not full and loop.recipe.keep_tokens >= 1:
            few = all_tokens
            continue
        loop.plan = replace(whole, lengths=(replace(whole.last, full_from=0 if full else 10**9),))
        batches = loop.feed.batches(0, 10**6)

        def step() -> None:
            batch = next(batches)  # noqa: B023  used up within this round
            loop.step(batch).item()
            loop.update(batch.step)

        spent = timed(step, seconds, loop.together)
        batches.close()
        few, all_tokens = (few, spent) if full else (spent, all_tokens)
    loop.measure()  # decodes what it needs
    evaluation = timed(loop.measure, 0.0, loop.together, warm_up=0, fewest=1)
    return Pace(few_tokens=few, all_tokens=all_tokens, evaluation=evaluation, ending=ENDING + evaluation * evaluations)


def timed(
    work: Callable[[], object],
    seconds: float,
    agreed: Callable[[bool], bool],
    warm_up: int = WARM_UP,
    fewest: int = FEWEST,
) -> float:
    """The shortest time of `work`, repeated for so long: the first ones wait for memory that is new to the process, at
    times four times as long. Several processes agree on when it is enough."""
    for _ in range(warm_up):
        work()
    begun, shortest = time.perf_counter(), float("inf")
    for done in count(1):
        before = time.perf_counter()
        work()
        after = time.perf_counter()
        shortest = min(shortest, after - before)
        if agreed(done >= fewest and after - begun >= seconds):
            return shortest
    raise AssertionError
