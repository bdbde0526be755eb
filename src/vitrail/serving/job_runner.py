"""Runs the work of a request: reserves capacity, decodes in a thread pool, runs the model, within a time limit."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, asynccontextmanager
from typing import Any, NamedTuple, TypeVar

import numpy as np
from starlette.requests import Request

from vitrail.images.unreadable import UnreadableImage
from vitrail.serving.batching import ModelThread
from vitrail.serving.forward_batch import ForwardRequest, ForwardResult
from vitrail.serving.http_errors import HttpError, service_unavailable, unprocessable
from vitrail.serving.limits import Capacity, Limits
from vitrail.serving.map_encoding import Maps, attention_maps_of
from vitrail.serving.served_model import Picture, ServedModel, encode_jpeg, error_sentence
from vitrail.serving.server_metrics import ServerMetrics
from vitrail.serving.uploads import read_images

T = TypeVar("T")


class DecodedImage(NamedTuple):
    picture: Picture
    seconds: float  # of decoding
    jpeg: bytes  # what the model sees; empty unless asked for


class JobRunner:
    """One model thread and a pool of decoding threads. Its async methods are called by the routes."""

    def __init__(self, served: ServedModel, limits: Limits, workers: int = 2) -> None:
        self.served, self.limits, self.metrics = served, limits, ServerMetrics()
        self.model_thread: ModelThread[ForwardRequest] = ModelThread(self._run_batch, served.batch_size)
        self.images = Capacity(limits.queue, "other images")
        self.explanations = Capacity(limits.explanations, "other explanations")
        self._decode_pool = ThreadPoolExecutor(workers, thread_name_prefix="vitrail-decode")
        self._decode_slots = asyncio.Semaphore(workers)

    async def warm_up(self) -> None:
        """Two forward passes in the model thread, so that no client waits for what torch sets up once."""
        height, width = self.served.preprocessing.size
        blank = np.zeros((height, width, self.served.preprocessing.channels), np.uint8)

        def attention(result: ForwardResult) -> Maps:
            assert result.step is not None
            return attention_maps_of(self.served.model, result.step, queries=[0])

        for _ in range(2):
            await self.model_thread.submit(ForwardRequest(blank, attention, 0))

    def close(self) -> None:
        self.model_thread.stop()
        self._decode_pool.shutdown(wait=False, cancel_futures=True)

    async def run_each(
        self, request: Request, finish: Callable[[Picture, Any], T], always_forward: bool = False
    ) -> list[T | UnreadableImage]:
        """For each image of the request: `finish(picture, output of the forward pass)`, or why it cannot be decoded.
        If none can be decoded, the whole request is refused.

        always_forward: also for an image in sliding windows, whose answer comes from forward passes of its own."""
        self.images.check()
        uploads = await read_images(request, self.limits)

        async def run(number: int, data: bytes) -> T | UnreadableImage:
            try:
                picture = await self.run_in_pool(lambda: self.served.read(data, f"image number {number}"))
            except UnreadableImage as error:
                return error
            if picture.whole is not None and not always_forward:
                return await self.model_thread.call(lambda: finish(picture, None))
            forward = ForwardRequest(picture.pixels, lambda output: finish(picture, output))
            result: T = await self.model_thread.submit(forward)
            return result

        with self._reserve(self.images, len(uploads)):
            jobs = asyncio.gather(*(run(number, data) for number, data in enumerate(uploads, start=1)))
            results = await self.within_time_limit(request, _as_coroutine(jobs))
        errors = [result for result in results if isinstance(result, UnreadableImage)]
        if len(errors) == len(results):
            raise unprocessable(error_sentence(errors[0]))
        return results

    @asynccontextmanager
    async def decode_one(
        self, request: Request, capacity: Capacity, with_jpeg: bool = False
    ) -> AsyncIterator[DecodedImage]:
        """The one image of a request, decoded. Capacity is held from when the body has arrived until the `async with`
        block ends; a client that is still sending holds none."""
        capacity.check()
        uploads = await read_images(request, self.limits)
        if len(uploads) != 1:
            raise unprocessable(f"one image at a time is looked at, and {len(uploads)} were sent")

        def decode() -> DecodedImage:
            started = time.perf_counter()
            picture = self.served.read(uploads[0], "the image")
            jpeg = encode_jpeg(picture.pixels) if with_jpeg else b""
            return DecodedImage(picture, time.perf_counter() - started, jpeg)

        with self._reserve(capacity):
            yield await self.within_time_limit(request, self.run_in_pool(decode))

    async def run_in_pool(self, function: Callable[[], T]) -> T:
        """The result of the function in a decoding thread, as soon as one is free. A client that disconnects before
        that leaves nothing in the pool; a function that runs already is finished, and keeps its thread until then."""
        await self._decode_slots.acquire()
        future = asyncio.get_running_loop().run_in_executor(self._decode_pool, function)

        def release(done: asyncio.Future[T]) -> None:
            self._decode_slots.release()
            if not done.cancelled():
                done.exception()  # retrieved, so that asyncio does not log one that nobody waits for any more

        future.add_done_callback(release)
        return await asyncio.shield(future)

    async def within_time_limit(self, request: Request, work: Coroutine[Any, Any, T]) -> T:
        """The result of the work. It is cancelled if the client disconnects or the time is over."""
        task, disconnect = asyncio.ensure_future(work), asyncio.ensure_future(_wait_for_disconnect(request))
        try:
            await asyncio.wait({task, disconnect}, timeout=self.limits.seconds, return_when=asyncio.FIRST_COMPLETED)
            if task.done():
                return task.result()
            if disconnect.done():
                raise HttpError(499, "the client hung up", reason="gone")
            raise service_unavailable(
                f"this took longer than {self.limits.seconds:g} s: try again when there is less to do", 5, "late"
            )
        finally:
            task.cancel()
            disconnect.cancel()
            await asyncio.gather(task, disconnect, return_exceptions=True)

    def _run_batch(self, requests: Sequence[ForwardRequest]) -> list[Any]:
        started = time.perf_counter()
        results = self.served.run(requests)
        self.metrics.count_batch(len(requests), time.perf_counter() - started)
        return results

    def _reserve(self, capacity: Capacity, amount: int = 1) -> AbstractContextManager[None]:
        retry_after = (self.model_thread.queue_length + 1) * self.metrics.seconds_per_image
        return capacity.reserve(amount, retry_after)


async def _as_coroutine(work: Awaitable[T]) -> T:
    return await work


async def _wait_for_disconnect(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
