"""How fast several engines are, side by side: one after the other in each round, so that a busy moment hits all."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping

SECONDS = 2.0  # for all of them together
LEAST_ROUNDS, MOST_ROUNDS = 3, 50


def median_seconds(runs: Mapping[str, Callable[[], object]], seconds: float = SECONDS) -> dict[str, float]:
    """The median time of each, after one run that does not count."""
    for run in runs.values():
        run()
    times: dict[str, list[float]] = {name: [] for name in runs}
    started = time.perf_counter()
    for done in range(MOST_ROUNDS):
        if done >= LEAST_ROUNDS and time.perf_counter() - started > seconds:
            break
        for name, run in runs.items():
            before = time.perf_counter()
            run()
            times[name].append(time.perf_counter() - before)
    return {name: statistics.median(values) for name, values in times.items()}
