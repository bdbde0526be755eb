"""Work that runs in threads a little ahead of whoever needs its results, so that reading and computing overlap."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Final, TypeVar

T = TypeVar("T")
R = TypeVar("R")


class Pause:
    """In a stream of items: nothing more for the moment, so hand out what is finished."""


PAUSE: Final = Pause()


def prefetch(
    work: Callable[[T], R], items: Iterable[T | Pause], workers: int, limit: int
) -> Generator[tuple[T, R] | Pause, None, None]:
    """Each item with its result, in the items' order; at most `limit` are in memory, however many there are."""
    pool = ThreadPoolExecutor(max(1, workers), thread_name_prefix="vitrail")
    pending: deque[tuple[T, Future[R]]] = deque()
    try:
        for item in items:
            if isinstance(item, Pause):
                yield from _drain(pending)
                yield item
                continue
            pending.append((item, pool.submit(work, item)))
            if len(pending) >= limit:
                first, future = pending.popleft()
                yield first, future.result()
        yield from _drain(pending)
    finally:
        pool.shutdown(wait=True, cancel_futures=True)  # an interruption does not wait for all that was submitted


def batched(items: Iterable[T | Pause], size: int) -> Iterator[list[T]]:
    """Lists of `size`, shorter ones before a pause and at the end."""
    batch: list[T] = []
    for item in items:
        if not isinstance(item, Pause):
            batch.append(item)
        if batch and (isinstance(item, Pause) or len(batch) == size):
            yield batch
            batch = []
    if batch:
        yield batch


def _drain(pending: deque[tuple[T, Future[R]]]) -> Iterator[tuple[T, R]]:
    while pending:
        item, future = pending.popleft()
        yield item, future.result()
