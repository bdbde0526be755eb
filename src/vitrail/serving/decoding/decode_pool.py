"""Decodes uploads in separate processes, each image within limits of memory and time.

A picture costs what these limits say, whatever its header claims: a process over its memory gives an error, and one
over its time is killed and replaced. Processes start when they are needed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from vitrail.images.unreadable import UnreadableImage
from vitrail.serving.decoding.picture_reader import Picture, PictureReader
from vitrail.serving.decoding.worker_process import WorkerDied, WorkerProcess, WorkerSettings
from vitrail.serving.limits import Limits

T = TypeVar("T")

ABANDONED = 1.0  # seconds that an image is still decoded for when nobody waits for it; starting a process takes as much


class DecodePool:
    """So many images at a time. Its async methods are called in one event loop."""

    def __init__(self, reader: PictureReader, limits: Limits, workers: int, on_replace: Callable[[], None]) -> None:
        self.workers, self._limits, self._on_replace = workers, limits, on_replace
        self._settings = WorkerSettings(reader, limits.bytes, limits.decode_bytes, limits.formats)
        self._threads = ThreadPoolExecutor(workers, thread_name_prefix="vitrail-decode")
        self._slots = asyncio.Semaphore(workers)
        self._idle: list[WorkerProcess] = []
        self._all: set[WorkerProcess] = set()

    async def start(self) -> None:
        """One process, so that the first image need not wait for it. Others start when they are needed."""
        await self._slots.acquire()
        try:
            self._idle.append(await self._new_worker())
        finally:
            self._slots.release()

    async def run(self, function: Callable[[], T]) -> T:
        """The result of a function of ours in a thread, as soon as one is free. A client that disconnects before that
        leaves nothing in the pool; a function that runs already is finished, and keeps its thread until then."""
        await self._slots.acquire()
        return await self._shielded(asyncio.ensure_future(self._in_thread(function)))

    async def decode(self, data: bytes, name: str) -> Picture:
        """The picture, or UnreadableImage. An image that nobody waits for any more is soon given up."""
        await self._slots.acquire()
        job = DecodeJob()
        future = asyncio.ensure_future(self._decode(job, data, name))
        try:
            return await self._shielded(future)
        except asyncio.CancelledError:
            asyncio.get_running_loop().call_later(ABANDONED, job.kill)
            raise
        finally:
            del future  # it holds its error, which holds this frame and the image: a circle

    def close(self) -> None:
        for worker in self._all:
            worker.kill()
        self._threads.shutdown(wait=True, cancel_futures=True)
        for worker in self._all:
            worker.close()
        self._all.clear()

    async def _decode(self, job: DecodeJob, data: bytes, name: str) -> Picture:
        worker = job.worker = await self._take_worker()
        seconds = self._limits.decode_seconds
        timer = asyncio.get_running_loop().call_later(seconds, job.kill)
        try:
            return await self._in_thread(lambda: worker.decode(data, name))
        except WorkerDied:
            why = f"takes longer than {seconds:g} s to decode" if job.killed else "breaks the decoder"
            raise UnreadableImage(name, "too large", f"{why}: make it smaller, or save it again") from None
        finally:
            timer.cancel()
            job.worker = None
            self._idle.append(worker)

    async def _take_worker(self) -> WorkerProcess:
        """One that lives: the last image may have ended it, or the system."""
        while self._idle:
            worker = self._idle.pop()
            if worker.alive:
                return worker
            await self._drop(worker)
        return await self._new_worker()

    async def _new_worker(self) -> WorkerProcess:
        worker = await self._in_thread(lambda: WorkerProcess(self._settings))
        self._all.add(worker)
        return worker

    async def _drop(self, worker: WorkerProcess) -> None:
        self._all.discard(worker)
        self._on_replace()
        await self._in_thread(worker.close)

    def _in_thread(self, function: Callable[[], T]) -> asyncio.Future[T]:
        return asyncio.get_running_loop().run_in_executor(self._threads, function)

    async def _shielded(self, work: asyncio.Future[T]) -> T:
        """Its result; its slot is free when it is done, whether or not somebody still waits for it."""

        def release(done: asyncio.Future[T]) -> None:
            self._slots.release()
            if not done.cancelled():
                done.exception()  # retrieved, so that asyncio does not log one that nobody waits for any more

        work.add_done_callback(release)
        return await asyncio.shield(work)


class DecodeJob:
    """One image, while a process decodes it."""

    def __init__(self) -> None:
        self.worker: WorkerProcess | None = None
        self.killed = False

    def kill(self) -> None:
        """Only while its own image is decoded: the process may have the next one by now."""
        if self.worker is not None:
            self.killed = True
            self.worker.kill()
