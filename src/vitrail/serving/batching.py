"""The one thread that runs the model: pictures that wait together go through it together, whoever sent them.

No delay is added to gather a batch. While one runs, the next gathers by itself; an idle server answers at once. The
queue has no limit of its own: only who holds one of the `Places` can put something in it.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

T = TypeVar("T")
P = TypeVar("P")  # what a batch is made of


@dataclass(eq=False)
class Job(Generic[P]):
    """`part` goes through the model with others; without it, `alone` is called by itself."""

    part: P | None
    alone: Callable[[], Any] | None
    loop: asyncio.AbstractEventLoop
    future: asyncio.Future[Any] = field(init=False)

    def __post_init__(self) -> None:
        self.future = self.loop.create_future()


class ModelThread(Generic[P]):
    """run: parts of a batch -> a result for each, in their order. An exception is that of every job in the batch."""

    def __init__(self, run: Callable[[Sequence[P]], Sequence[Any]], batch_size: int) -> None:
        self._run, self.batch_size = run, batch_size
        self._waiting: deque[Job[P]] = deque()
        self._changed = threading.Condition()
        self._ended = False
        self._thread = threading.Thread(target=self._work, name="vitrail-model", daemon=True)
        self._thread.start()

    async def batched(self, part: P) -> Any:
        """The result of this part. Cancelled while it waits, it is never run."""
        return await self._put(Job(part, None, asyncio.get_running_loop()))

    async def alone(self, work: Callable[[], T]) -> T:
        """The result of some other work on the model."""
        result: T = await self._put(Job(None, work, asyncio.get_running_loop()))
        return result

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    def end(self, seconds: float = 5.0) -> None:
        """What runs is finished; what waits is not begun."""
        with self._changed:
            self._ended = True
            self._changed.notify()
        self._thread.join(seconds)

    async def _put(self, job: Job[P]) -> Any:
        with self._changed:
            self._waiting.append(job)
            self._changed.notify()
        try:
            return await job.future
        except asyncio.CancelledError:
            with self._changed:
                if job in self._waiting:
                    self._waiting.remove(job)
            raise

    # ---- the thread

    def _work(self) -> None:
        while (batch := self._next()) is not None:
            results: Sequence[Any]
            try:
                first = batch[0]
                if first.alone is not None:
                    results = [first.alone()]
                else:
                    results = self._run([job.part for job in batch if job.part is not None])
            except BaseException as error:  # whatever it is, somebody waits for it, and the thread has to go on
                results = [error] * len(batch)
            _deliver(batch, results)
            del batch, results  # a thread that waits for the next job holds no pictures of the last

    def _next(self) -> list[Job[P]] | None:
        """The job that has waited longest, and if it is a part of a batch, all others that fit into it."""
        with self._changed:
            while not self._waiting and not self._ended:
                self._changed.wait()
            if self._ended:
                return None
            batch = [self._waiting.popleft()]
            if batch[0].part is not None:
                others = [job for job in self._waiting if job.part is not None][: self.batch_size - 1]
                for job in others:
                    self._waiting.remove(job)
                batch += others
        return batch


def _deliver(batch: Sequence[Job[Any]], results: Sequence[Any]) -> None:
    by_loop: dict[asyncio.AbstractEventLoop, list[tuple[asyncio.Future[Any], Any]]] = {}
    for job, result in zip(batch, results, strict=True):
        by_loop.setdefault(job.loop, []).append((job.future, result))
    for loop, pairs in by_loop.items():
        if not loop.is_closed():
            loop.call_soon_threadsafe(_settle, pairs)


def _settle(pairs: Sequence[tuple[asyncio.Future[Any], Any]]) -> None:
    for future, result in pairs:
        if future.done():  # cancelled while it ran
            continue
        if isinstance(result, BaseException):
            future.set_exception(result)
        else:
            future.set_result(result)
