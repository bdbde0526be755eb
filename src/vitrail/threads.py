"""Work on many files at once. Threads are enough: reading, hashing and Pillow's decoders let others run meanwhile."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from vitrail.progress import Progress

_BATCH = 16  # files for a thread at a time, at most: handing over one by one costs more than hashing a small file

A = TypeVar("A")
B = TypeVar("B")


def usable_cores() -> int:
    """Cores that this process may use: fewer than the machine has in a container or under `taskset`."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def in_threads(
    work: Callable[[A], B], items: Sequence[A], workers: int | None = None, progress: Progress | None = None
) -> list[B]:
    """`work` on each of the items; the results are in their order."""
    results: list[B] = []
    workers = workers or min(8, usable_cores())
    size = max(1, min(_BATCH, len(items) // (2 * workers)))  # few items are shared out too
    batches = [items[start : start + size] for start in range(0, len(items), size)]
    pool = ThreadPoolExecutor(workers, thread_name_prefix="vitrail")
    try:
        for done in pool.map(lambda batch: [work(item) for item in batch], batches):
            results += done
            if progress is not None:
                progress(len(results), len(items))
    finally:
        pool.shutdown(wait=True, cancel_futures=True)  # so that an interruption does not wait for all the rest
    return results
