"""Work that runs a little ahead of whoever needs its results, so that reading and computing happen at once."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Final, TypeVar

A = TypeVar("A")
B = TypeVar("B")


class Pause:
    """In a stream of things: nothing more for the moment, so hand out what you have."""


PAUSE: Final = Pause()


def ahead(
    work: Callable[[A], B], things: Iterable[A | Pause], workers: int, most: int
) -> Generator[tuple[A, B] | Pause, None, None]:
    """Each thing with its result, in the things' order; never more than `most` are in hand, however many there are."""
    pool = ThreadPoolExecutor(max(1, workers), thread_name_prefix="vitrail")
    waiting: deque[tuple[A, Future[B]]] = deque()
    try:
        for thing in things:
            if isinstance(thing, Pause):
                yield from _drained(waiting)
                yield thing
                continue
            waiting.append((thing, pool.submit(work, thing)))
            if len(waiting) >= most:
                first, result = waiting.popleft()
                yield first, result.result()
        yield from _drained(waiting)
    finally:
        pool.shutdown(wait=True, cancel_futures=True)  # an interruption does not wait for all that was handed out


def batched(things: Iterable[A | Pause], size: int) -> Iterator[list[A]]:
    """Lists of `size`, shorter ones before a pause and at the end."""
    batch: list[A] = []
    for thing in things:
        if not isinstance(thing, Pause):
            batch.append(thing)
        if batch and (isinstance(thing, Pause) or len(batch) == size):
            yield batch
            batch = []
    if batch:
        yield batch


def _drained(waiting: deque[tuple[A, Future[B]]]) -> Iterator[tuple[A, B]]:
    while waiting:
        first, result = waiting.popleft()
        yield first, result.result()
