"""How long a step takes here: a few real ones, on a copy of the model that is thrown away afterwards."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from itertools import count

from vitrail.training.plan import Length
from vitrail.training.train_step import Trainer

SHARE = 0.005  # of the time, for each kind of step
LONGEST = 10.0  # seconds
WARM_UP = 2  # steps that do not count: memory is new, threads start
FEWEST = 4
TIMED_IMAGES = 64  # held-out images whose evaluation is timed, at most
MORE = 4  # times as many are timed after the first, if there is time
ENDLESS = Length(steps=10**9, warmup=0, full_from=0, evaluations=1)  # every step sees all tokens


def measure_steps(trainer: Trainer, budget: float) -> tuple[float, float]:
    """Seconds of a step with some and with all tokens. `budget`: seconds of the whole run."""
    seconds = min(SHARE * budget, LONGEST)
    all_tokens = few_tokens = time_steps(trainer, ENDLESS, seconds)
    assert trainer.recipe.keep_tokens is not None
    if trainer.recipe.keep_tokens < 1:
        few_tokens = time_steps(trainer, replace(ENDLESS, full_from=ENDLESS.steps), seconds)
    return few_tokens, all_tokens


def measure_evaluation(
    evaluate: Callable[[int], object], images: int, agree: Callable[[bool], bool], seconds: float = math.inf
) -> float:
    """Seconds of evaluating one held-out image. `evaluate` takes how many, `images` is how many there are. The first
    ones wait for memory that is new to the process, so more and more are run, as many as so many seconds suffice for:
    of photos of 12 megapixels with masks each takes seconds."""
    timed, began = 1, time.perf_counter()
    while True:
        before = time.perf_counter()
        evaluate(timed)
        now = time.perf_counter()
        following = min(MORE * timed, TIMED_IMAGES, images)
        too_long = now - began + (now - before) / timed * following > seconds
        if agree(too_long or following <= timed):
            return (now - before) / timed
        timed = following


def time_steps(trainer: Trainer, length: Length, seconds: float) -> float:
    with closing(trainer.loader.batches(0, 10**6)) as batches:

        def step() -> None:
            batch = next(batches)
            trainer.gradients(batch, length).item()
            trainer.update(batch.step, length)

        return shortest_time(step, seconds, trainer.processes.agree)


def shortest_time(work: Callable[[], object], seconds: float, agree: Callable[[bool], bool]) -> float:
    """The shortest time of `work`, repeated for so long: the first ones wait for memory that is new to the process, at
    times four times as long. Several processes agree on when it is enough."""
    for _ in range(WARM_UP):
        work()
    began, shortest = time.perf_counter(), float("inf")
    for done in count(1):
        before = time.perf_counter()
        work()
        after = time.perf_counter()
        shortest = min(shortest, after - before)
        if agree(done >= FEWEST and after - began >= seconds):
            return shortest
    raise AssertionError
