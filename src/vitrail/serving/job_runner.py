"""Runs the work of a request: reserves capacity, decodes, runs the model, within a time limit."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Sequence
from contextlib import AbstractContextManager, asynccontextmanager
from typing import Any, NamedTuple, TypeVar

import numpy as np
from starlette.requests import Request

from vitrail.images.unreadable import UnreadableImage
from vitrail.serving.batching import ModelThread
from vitrail.serving.decoding.decode_pool import DecodePool
from vitrail.serving.decoding.picture_reader import Picture
from vitrail.serving.forward_batch import ForwardRequest, ForwardResult
from vitrail.serving.http_errors import HttpError, service_unavailable, unprocessable
from vitrail.serving.limits import Capacity, Limits
from vitrail.serving.map_encoding import Maps, attention_maps_of
from vitrail.serving.served_model import ServedModel, encode_jpeg, error_sentence
from vitrail.serving.server_metrics import ServerMetrics
from vitrail.serving.uploads import read_images

T = TypeVar("T")


class DecodedImage(NamedTuple):
    picture: Picture
    seconds: float  # of decoding
    jpeg: bytes  # what the model sees; empty unless asked for


class JobRunner:
    """One model thread and a pool of decoding processes. Its async methods are called by the routes."""

    def __init__(self, served: ServedModel, limits: Limits, workers: int = 2) -> None:
        self.served, self.limits, self.metrics = served, limits, ServerMetrics()
        self.model_thread: ModelThread[ForwardRequest] = ModelThread(self._run_batch, served.batch_size)
        self.images = Capacity(limits.queue, "other images")
        self.explanations = Capacity(limits.explanations, "other explanations")
        self.pool = DecodePool(served.reader, limits, workers, lambda: self.metrics.count_refusal("decoder"))

    async def warm_up(self) -> None:
        """Two forward passes and a decoding process, so that no client waits for what is set up once."""
        height, width = self.served.preprocessing.size
        blank = np.zeros((height, width, self.served.preprocessing.channels), np.uint8)

        def attention(result: ForwardResult) -> Maps:
            assert result.step is not None
            return attention_maps_of(self.served.model, result.step, queries=[0])

        await self.pool.start()
        for _ in range(2):
            if self.served.looks_inside:
                await self.model_thread.submit(ForwardRequest(blank, attention, 0))
            else:  # maps come from torch beside it, which is set up when somebody asks for them
                await self.model_thread.submit(ForwardRequest(blank, lambda result: None))

    def close(self) -> None:
        self.model_thread.stop()
        self.pool.close()

    @asynccontextmanager
    async def run_each(
        self, request: Request, finish: Callable[[Picture, Any], T], embeds: bool = False
    ) -> AsyncIterator[list[T | UnreadableImage]]:
        """For each image of the request: `finish(picture, output of the forward pass)`, or why it cannot be decoded.
        If none can be decoded, the whole request is refused. Capacity is held until the `async with` block ends.

        embeds: `finish` reads the pooled vector. An image in sliding windows, whose answer comes from forward passes of
        its own, then has one as well."""
        self.images.check()
        uploads = await read_images(request, self.limits)
        turns = asyncio.Semaphore(self.pool.workers)  # so that no other request waits for all images of this one

        async def run(number: int, data: bytes) -> T | UnreadableImage:
            try:
                async with turns:
                    picture = await self.pool.decode(data, f"image number {number}")
            except UnreadableImage as error:
                return error.with_traceback(None)  # whose frames hold the image
            if picture.whole is not None and not embeds:
                return await self.model_thread.call(lambda: finish(picture, None))
            forward = ForwardRequest(picture.pixels, lambda output: finish(picture, output), pooled=embeds)
            result: T = await self.model_thread.submit(forward)
            return result

        with self._reserve(self.images, len(uploads)):
            jobs = (run(number, data) for number, data in enumerate(uploads, start=1))
            results = await self.within_time_limit(request, _all_results(jobs))
            errors = [result for result in results if isinstance(result, UnreadableImage)]
            if len(errors) == len(results):
                raise unprocessable(error_sentence(errors[0]))
            yield results

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

        async def decode() -> DecodedImage:
            started = time.perf_counter()
            picture = await self.pool.decode(uploads[0], "the image")
            jpeg = await self.pool.run(lambda: encode_jpeg(picture.pixels)) if with_jpeg else b""
            return DecodedImage(picture, time.perf_counter() - started, jpeg)

        with self._reserve(capacity):
            yield await self.within_time_limit(request, decode())

    async def run_in_pool(self, request: Request, function: Callable[[], T]) -> T:
        """The result of a function of ours in a thread of the pool, within the time limit."""
        return await self.within_time_limit(request, self.pool.run(function))

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


async def _all_results(jobs: Iterable[Coroutine[Any, Any, T]]) -> list[T]:
    """In their order. If one fails, the others are cancelled: nobody will read their results."""
    tasks = [asyncio.ensure_future(job) for job in jobs]
    try:
        return await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _wait_for_disconnect(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
