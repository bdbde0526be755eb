"""The thread that runs the model. Images that wait at the same time share a forward pass, whoever sent them.

No delay is added to fill a batch: while one runs, the next gathers, and an idle server answers at once. The queue
has no limit of its own, since only requests that hold a part of the server's `Capacity` can add to it.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

T = TypeVar("T")
P = TypeVar("P")  # one element of a batch


@dataclass(eq=False)
class Job(Generic[P]):
    """Either `part`, an element of a batch, or `function`, which is called by itself."""

    part: P | None
    function: Callable[[], Any] | None
    loop: asyncio.AbstractEventLoop
    long: bool = False  # a function that gives all others a turn between its batches
    future: asyncio.Future[Any] = field(init=False)
    abandoned: bool = False  # nobody waits for its result any more

    def __post_init__(self) -> None:
        self.future = self.loop.create_future()


class Abandoned(Exception):
    """Ends a long function whose caller is gone."""


class ModelThread(Generic[P]):
    """run_batch: parts -> one result for each, in order. If it raises, every job of the batch gets the exception."""

    def __init__(self, run_batch: Callable[[Sequence[P]], Sequence[Any]], batch_size: int) -> None:
        self._run_batch, self.batch_size = run_batch, batch_size
        self._queue: deque[Job[P]] = deque()
        self._changed = threading.Condition()
        self._stopped = False
        self._running: Job[P] | None = None
        self._thread = threading.Thread(target=self._work, name="vitrail-model", daemon=True)
        self._thread.start()

    async def submit(self, part: P) -> Any:
        """The result of this part. If the caller is cancelled while the part waits, it is never run."""
        return await self._enqueue(Job(part, None, asyncio.get_running_loop()))

    async def call(self, function: Callable[[], T]) -> T:
        """The result of other work on the model, which has a turn of its own."""
        result: T = await self._enqueue(Job(None, function, asyncio.get_running_loop()))
        return result

    async def call_long(self, function: Callable[[], T]) -> T:
        """The same of work that costs as much as many images: all that waits goes between its batches."""
        result: T = await self._enqueue(Job(None, function, asyncio.get_running_loop(), long=True))
        return result

    def take_turns(self) -> None:
        """For a function of several batches, to call between them, in the model's thread. Images that wait get a
        forward pass first, and if the function is a long one, the oldest of the others goes too. If nobody waits for
        the function any more, it ends here."""
        assert threading.current_thread() is self._thread
        function = self._running
        if self._stopped or (function is not None and function.abandoned):
            raise Abandoned
        with self._changed:
            turns = [self._take_parts(self.batch_size)]
            if function is not None and function.long:  # others give no turn to their like: it would come inside
                turns.append(self._take_function())
        for batch in filter(None, turns):
            self._run(batch)
        self._running = function

    @property
    def queue_length(self) -> int:
        return len(self._queue)

    def stop(self, seconds: float = 5.0) -> None:
        """The running batch is finished; jobs in the queue are not started."""
        with self._changed:
            self._stopped = True
            self._changed.notify()
        self._thread.join(seconds)

    async def _enqueue(self, job: Job[P]) -> Any:
        with self._changed:
            self._queue.append(job)
            self._changed.notify()
        try:
            return await job.future
        except asyncio.CancelledError:
            with self._changed:
                if job in self._queue:
                    self._queue.remove(job)
                job.abandoned = True
            raise
        finally:
            del job  # it holds its error, which holds this frame: a circle, with all that the work had in memory

    # ---- in the thread

    def _work(self) -> None:
        while (batch := self._next_batch()) is not None:
            self._run(batch)
            del batch  # an idle thread keeps no images in memory

    def _run(self, batch: Sequence[Job[P]]) -> None:
        results: Sequence[Any]
        self._running = batch[0]
        try:
            if batch[0].function is not None:
                results = [batch[0].function()]
            else:
                results = self._run_batch([job.part for job in batch if job.part is not None])
        except BaseException as error:  # a request waits for it, and the thread has to go on
            results = [error] * len(batch)
        self._running = None
        _deliver(batch, results)
        del batch, results  # as above: an error among them holds this frame

    def _next_batch(self) -> list[Job[P]] | None:
        """The oldest job; if it is a part of a batch, with as many other parts as fit."""
        with self._changed:
            while not self._queue and not self._stopped:
                self._changed.wait()
            if self._stopped:
                return None
            batch = [self._queue.popleft()]
            if batch[0].part is not None:
                batch += self._take_parts(self.batch_size - 1)
        return batch

    def _take_parts(self, number: int) -> list[Job[P]]:
        """The oldest parts of the queue, at most so many. The caller holds the lock."""
        parts = [job for job in self._queue if job.part is not None][:number]
        for job in parts:
            self._queue.remove(job)
        return parts

    def _take_function(self) -> list[Job[P]]:
        """The oldest function that is not long, if there is one. The caller holds the lock."""
        functions = [job for job in self._queue if job.function is not None and not job.long][:1]
        for job in functions:
            self._queue.remove(job)
        return functions


def _deliver(batch: Sequence[Job[Any]], results: Sequence[Any]) -> None:
    """Set the futures in their event loops, with one wake-up for each loop."""
    by_loop: dict[asyncio.AbstractEventLoop, list[tuple[asyncio.Future[Any], Any]]] = {}
    for job, result in zip(batch, results, strict=True):
        by_loop.setdefault(job.loop, []).append((job.future, result))
    for loop, pairs in by_loop.items():
        if not loop.is_closed():
            loop.call_soon_threadsafe(_set_results, pairs)


def _set_results(pairs: Sequence[tuple[asyncio.Future[Any], Any]]) -> None:
    for future, result in pairs:
        if future.done():  # cancelled while it ran
            continue
        if isinstance(result, BaseException):
            future.set_exception(result)
        else:
            future.set_result(result)
