"""How a request's work gets done: a place for it, decoding in threads, the model in its own, and an end to waiting."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, asynccontextmanager
from typing import Any, TypeVar

import numpy as np
from starlette.requests import Request

from vitrail.data.unreadable import UnreadableImage
from vitrail.serving.answers import Picture, Served, as_jpeg, sentence_of
from vitrail.serving.batching import ModelThread
from vitrail.serving.bodies import pictures
from vitrail.serving.limits import Limits, Places
from vitrail.serving.maps import Maps, maps_of
from vitrail.serving.metrics import Metrics
from vitrail.serving.passing import Part, Passed
from vitrail.serving.refusals import Refusal, busy, unfit

T = TypeVar("T")


class Workshop:
    """images, slow: the places. thread: where the model runs; decoders: where pictures are read."""

    def __init__(self, served: Served, limits: Limits, workers: int = 2) -> None:
        self.served, self.limits, self.metrics = served, limits, Metrics()
        self.thread: ModelThread[Part] = ModelThread(self._run, served.batch_size)
        self.images = Places(limits.waiting, "other images")
        self.slow = Places(limits.slow, "other explanations")
        self.decoders = ThreadPoolExecutor(workers, thread_name_prefix="vitrail-decode")
        self.decoding = asyncio.Semaphore(workers)

    async def warm_up(self) -> None:
        """A first pass in the thread that will do all others, so that no client waits for what torch sets up once."""
        shape = (*self.served.preprocessing.size, self.served.preprocessing.channels)
        blank = np.zeros(shape, np.uint8)

        def finish(result: Passed) -> Maps:
            assert result.tokens is not None
            return maps_of(self.served.model, 0, result.tokens, result.turns, queries=[0])

        for _ in range(2):
            await self.thread.batched(Part(blank, finish, 0))

    def close(self) -> None:
        self.thread.end()
        self.decoders.shutdown(wait=False, cancel_futures=True)

    async def each(
        self, request: Request, finish: Callable[[Picture, Any], T], always_pass: bool = False
    ) -> list[T | UnreadableImage]:
        """The result of each image, or why it cannot be read; where none can be, that is the answer. A picture that is
        seen through windows has passes of its own, and needs none besides."""
        self.images.check()
        sent = await pictures(request, self.limits)

        async def one(number: int, data: bytes) -> T | UnreadableImage:
            try:
                picture = await self.in_pool(lambda: self.served.read(data, f"image number {number}"))
            except UnreadableImage as error:
                return error
            if picture.whole is not None and not always_pass:
                return await self.thread.alone(lambda: finish(picture, None))
            result: T = await self.thread.batched(Part(picture.pixels, lambda passed: finish(picture, passed)))
            return result

        with self._place(self.images, len(sent)):
            work = asyncio.gather(*(one(number, data) for number, data in enumerate(sent, start=1)))
            results = await self.in_time(request, _awaited(work))
        errors = [one for one in results if isinstance(one, UnreadableImage)]
        if len(errors) == len(results):
            raise unfit(sentence_of(errors[0]))
        return results

    @asynccontextmanager
    async def one_picture(
        self, request: Request, places: Places, shown: bool = False
    ) -> AsyncIterator[tuple[Picture, float, bytes]]:
        """The one image of a request, how long it took to decode, and a JPEG of what the model sees if asked for. Its
        place is held until the work inside is done; a client that is still sending holds none."""
        places.check()
        sent = await pictures(request, self.limits)
        if len(sent) != 1:
            raise unfit(f"one image at a time is looked at, and {len(sent)} were sent")

        def read() -> tuple[Picture, float, bytes]:
            begun = time.perf_counter()
            picture = self.served.read(sent[0], "the image")
            jpeg = as_jpeg(picture.pixels) if shown else b""
            return picture, time.perf_counter() - begun, jpeg

        with self._place(places):
            yield await self.in_time(request, self.in_pool(read))

    async def in_pool(self, work: Callable[[], T]) -> T:
        """In a thread that decodes, as soon as one is free. A client that hangs up meanwhile leaves nothing waiting in
        the pool; what has begun is finished, and its thread is not free before."""
        await self.decoding.acquire()
        future = asyncio.get_running_loop().run_in_executor(self.decoders, work)

        def finished(done: asyncio.Future[T]) -> None:
            self.decoding.release()
            if not done.cancelled():
                done.exception()  # asked for, so that asyncio does not complain of one that nobody waits for any more

        future.add_done_callback(finished)
        return await asyncio.shield(future)

    async def in_time(self, request: Request, work: Coroutine[Any, Any, T]) -> T:
        """The work's result, unless the client hangs up or the time is over: then it is dropped, wherever it stands."""
        task, gone = asyncio.ensure_future(work), asyncio.ensure_future(_hung_up(request))
        try:
            await asyncio.wait({task, gone}, timeout=self.limits.seconds, return_when=asyncio.FIRST_COMPLETED)
            if task.done():
                return task.result()
            if gone.done():
                raise Refusal(499, "the client hung up", why="gone")
            raise busy(
                f"this took longer than {self.limits.seconds:g} s: try again when there is less to do", 5, "late"
            )
        finally:
            task.cancel()
            gone.cancel()
            await asyncio.gather(task, gone, return_exceptions=True)

    def _run(self, parts: Sequence[Part]) -> list[Any]:
        started = time.perf_counter()
        results = self.served.run(parts)
        self.metrics.forward(len(parts), time.perf_counter() - started)
        return results

    def _place(self, places: Places, number: int = 1) -> AbstractContextManager[None]:
        return places.take(number, (self.thread.waiting + 1) * self.metrics.seconds_an_image)


async def _awaited(work: Awaitable[T]) -> T:
    return await work


async def _hung_up(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
