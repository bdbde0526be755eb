"""Images are decoded in processes of their own: what one image costs is bounded, and is one error row."""

from __future__ import annotations

import asyncio
import gc
import subprocess
import sys
import threading
import time
import zlib
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.images import hostile
from tests.serving.conftest import checkpoint
from tests.serving.server import AppClient, Server, ThreadServer, form, picture, until
from tests.serving.test_abuse import post_head
from tests.serving.test_batching import async_test
from vitrail.images.unreadable import UnreadableImage
from vitrail.model.presets import preset
from vitrail.model.vit import ViT
from vitrail.serving.decoding import worker_process
from vitrail.serving.decoding.decode_pool import DecodePool
from vitrail.serving.decoding.picture_reader import PictureReader
from vitrail.serving.decoding.worker_process import WorkerDied, WorkerProcess, WorkerSettings
from vitrail.serving.limits import Limits
from vitrail.weights.checkpoint import Checkpoint
from vitrail.weights.preprocessing import Preprocessing

SMALL = Preprocessing(size=(32, 32))


def reader(resize: str = "crop", dense: bool = False, pixels: int = 4_000_000) -> PictureReader:
    return PictureReader(SMALL.replace(resize=resize), dense, (4, 4), pixels)


def settings(**changes: Any) -> WorkerSettings:
    values = {"reader": reader(), "max_bytes": 8_000_000, "memory": 300_000_000, "formats": Limits().formats}
    return WorkerSettings(**{**values, **changes})


@pytest.fixture(scope="module")
def worker() -> Iterator[WorkerProcess]:
    worker = WorkerProcess(settings())
    yield worker
    worker.close()


# ---- one process


def test_the_process_does_without_torch() -> None:
    module = "vitrail.serving.decoding.decode_worker"
    code = f"import sys, {module} as _; print(sorted({{'torch', 'starlette'}} & {{*sys.modules}}))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"


@pytest.mark.parametrize(("resize", "dense"), [("crop", False), ("pad", True), ("window", True)])
def test_pictures_come_back_as_they_would_be_read_here(resize: str, dense: bool) -> None:
    own = reader(resize, dense)
    worker = WorkerProcess(settings(reader=own))
    for seed, size in enumerate([(48, 40), (60, 30)]):
        data = picture(seed, size=size)
        expected, result = own.read(data, "it"), worker.decode(data, "it")
        assert (result.pixels == expected.pixels).all() and result.pixels.dtype == np.uint8
        assert (result.size, result.letterbox) == (expected.size, expected.letterbox)
        assert (result.whole is None) == (expected.whole is None)
        assert expected.whole is None or (result.whole == expected.whole).all()
    worker.close()


HOSTILE = [
    hostile.jpeg2000,
    hostile.tiff_of_one_tile,
    hostile.tiff_of_small_tiles,
    lambda: hostile.tiff_of_size(0, 0),
    hostile.png_strip,
    lambda: b"",
    lambda: b"\0" * 100,
]


@pytest.mark.parametrize("make", HOSTILE, ids=range(len(HOSTILE)))
def test_an_error_is_of_its_image_alone(worker: WorkerProcess, make: Callable[[], bytes]) -> None:
    with pytest.raises(UnreadableImage, match="^number 7 "):
        worker.decode(make(), "number 7")
    assert worker.decode(picture(), "it").size == (40, 48)


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux limits the memory of a process like this")
def test_memory_over_the_limit_is_an_error() -> None:
    worker = WorkerProcess(settings(reader=reader(pixels=100_000_000), memory=60_000_000))
    large = hostile.png(6000, 5000, zlib.compress(b"\0" * (6000 * 3 + 1) * 5000))
    with pytest.raises(UnreadableImage, match="needs more memory"):
        worker.decode(large, "it")  # 90 MB and more
    assert worker.decode(picture(), "it").size == (40, 48)
    worker.close()


def test_other_formats_are_taken_on_request(worker: WorkerProcess) -> None:
    data = hostile.qoi(8, 8, b"\xfe\1\2\3" + b"\xc0" * 63)
    with pytest.raises(UnreadableImage, match="format QOI, which is not taken here: send it as JPEG or PNG"):
        worker.decode(data, "it")
    other = WorkerProcess(settings(formats=(*Limits().formats, "QOI")))
    assert other.decode(data, "it").size == (8, 8)
    other.close()


def test_a_process_that_is_killed_gives_no_answer() -> None:
    worker = WorkerProcess(settings())
    worker.kill()
    with pytest.raises(WorkerDied):
        worker.decode(picture(), "it")
    worker.close()


# ---- the pool


class SlowWorker:
    """Stands for a process: `slow` images are decoded until it is killed."""

    started = 0

    def __init__(self, settings: WorkerSettings) -> None:
        SlowWorker.started += 1
        self.killed, self.begun = threading.Event(), threading.Event()

    def decode(self, data: bytes, name: str) -> Any:
        if data == b"broken":
            raise UnreadableImage(name, "damaged", "is damaged")
        if data == b"slow":
            self.begun.set()
            assert self.killed.wait(60)
        if self.killed.is_set():
            raise WorkerDied
        return data

    @property
    def alive(self) -> bool:
        return not self.killed.is_set()

    def kill(self) -> None:
        self.killed.set()

    def close(self) -> None:
        self.kill()


@pytest.fixture
def slow_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    SlowWorker.started = 0
    monkeypatch.setattr("vitrail.serving.decoding.decode_pool.WorkerProcess", SlowWorker)
    monkeypatch.setattr("vitrail.serving.decoding.decode_pool.ABANDONED", 0.01)


@async_test
async def test_who_takes_too_long_is_killed_and_replaced(slow_workers: None) -> None:
    replaced: list[int] = []
    pool = DecodePool(reader(), Limits(decode_seconds=0.05), 1, lambda: replaced.append(1))
    assert SlowWorker.started == 0  # until it is needed
    assert await pool.decode(b"a", "it") == b"a"  # type: ignore[comparison-overlap]
    with pytest.raises(UnreadableImage, match=r"it takes longer than 0.05 s to decode"):
        await pool.decode(b"slow", "it")
    with pytest.raises(UnreadableImage, match="is damaged"):
        await pool.decode(b"broken", "it")
    assert await pool.decode(b"b", "it") == b"b"  # type: ignore[comparison-overlap]
    assert (SlowWorker.started, replaced) == (2, [1])
    pool._idle[0].kill()  # as the system may when it has no memory left
    assert await pool.decode(b"c", "it") == b"c"  # type: ignore[comparison-overlap]
    assert (SlowWorker.started, replaced) == (3, [1, 1])
    pool.close()


@async_test
async def test_an_image_that_nobody_waits_for_is_given_up(slow_workers: None) -> None:
    pool = DecodePool(reader(), Limits(decode_seconds=600), 1, lambda: None)
    slow = asyncio.ensure_future(pool.decode(b"slow", "it"))
    waiting = asyncio.ensure_future(pool.decode(b"slow", "it"))
    while not SlowWorker.started:
        await asyncio.sleep(0.01)
    await asyncio.sleep(0.05)
    waiting.cancel()  # before its turn: it is never begun
    slow.cancel()
    assert await asyncio.wait_for(pool.decode(b"next", "it"), 60) == b"next"  # type: ignore[comparison-overlap]
    assert SlowWorker.started == 2
    pool.close()


# ---- a server


def test_one_broken_image_is_one_row(server: Server) -> None:
    images = [picture(1), hostile.tiff_of_size(0, 0), picture(2), hostile.jpeg2000(), hostile.tiff_of_one_tile()]
    response = server.send("/v1/predict", *images)
    assert response.status == 200
    assert ["error" in row for row in response.json["results"]] == [False, True, False, True, True]
    assert response.json["results"][1]["error"].startswith("image number 2 ")


def test_a_tiff_of_no_size_for_many_channels() -> None:
    config = preset("mu/4", classes=2, image_size=32, channels=5, depth=1)
    preprocessing = Preprocessing(size=config.image_size).for_channels(5)
    server = ThreadServer(Checkpoint(ViT(config), preprocessing, "classify", ["a", "b"]))
    good = hostile.ome_tiff(planes=1)
    response = server.send(
        "/v1/predict", hostile.tiff_of_size(0, 0), good, hostile.tiff_of_size(5, 0), hostile.ome_tiff()
    )
    assert response.status == 200
    assert ["error" in row for row in response.json["results"]] == [True, False, True, False]
    assert server.stop() == 0


def test_a_failure_cancels_the_rest_of_the_request(monkeypatch: pytest.MonkeyPatch) -> None:
    server = ThreadServer(checkpoint())
    cancelled: list[str] = []

    async def decode(data: bytes, name: str) -> Any:
        if name == "image number 1":
            raise RuntimeError("a bug")
        try:
            await asyncio.sleep(600)
        except asyncio.CancelledError:
            cancelled.append(name)
            raise

    monkeypatch.setattr(server.runner.pool, "decode", decode)
    monkeypatch.setattr(server.runner.pool, "workers", 3)
    assert server.send("/v1/predict", picture(1), picture(2), picture(3)).status == 500
    assert sorted(cancelled) == ["image number 2", "image number 3"]
    until(lambda: server.runner.images.used == 0)
    assert server.stop() == 0


def test_a_decoder_that_hangs_keeps_nobody_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    """A real process, which a program that never answers has taken the place of."""
    start = worker_process._start

    def hanging(handle: str) -> subprocess.Popen[bytes]:
        code = "import sys; sys.stdin.readline(); print('{}', flush=True); sys.stdin.readline(); sys.stdin.readline()"
        monkeypatch.setattr(worker_process, "_start", start)  # the next one is as it should be
        return subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    monkeypatch.setattr(worker_process, "_start", hanging)
    server = ThreadServer(checkpoint(), decode_seconds=0.2)
    response = server.send("/v1/predict", picture())
    assert (response.status, "takes longer than 0.2 s" in response.error) == (422, True)
    server.runner.pool._limits = Limits()
    assert server.send("/v1/predict", picture()).status == 200
    assert b'vitrail_refused_total{why="decoder"} 1.0' in server.get("/metrics").body
    assert server.stop() == 0


def test_images_that_take_all_the_time_keep_no_other_waiting() -> None:
    """As many as there are decoding processes: these are killed and replaced, and who waits is answered."""
    server, costly = ThreadServer(checkpoint(), decode_seconds=0.5), hostile.jpeg_of_scans(side=5000, mode="L")
    with ThreadPoolExecutor(2) as pool:
        sent = [pool.submit(server.send, "/v1/predict", costly) for _ in range(2)]
        until(lambda: server.runner.images.used == 2 or any(one.done() for one in sent))
        assert server.send("/v1/predict", picture()).status == 200
        refused = [one.result() for one in sent]
    assert [one.status for one in refused] == [422] * 2
    assert all("takes longer than 0.5 s to decode" in one.error for one in refused)
    assert server.stop() == 0


def test_an_image_that_takes_long_leaves_the_other_process_free() -> None:
    server, costly = ThreadServer(checkpoint(), decode_seconds=60), hostile.jpeg_of_scans(mode="L")
    body, _ = form(costly)
    with server.socket() as connection:
        connection.sendall(post_head(f"Content-Length: {len(body)}") + body)
        until(lambda: server.runner.images.used == 1)
        assert server.send("/v1/predict", picture()).status == 200
        assert server.runner.images.used == 1  # it is still decoded
    assert server.stop() == 0


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux limits the memory of a process like this")
def test_images_that_take_all_the_memory_keep_no_other_waiting() -> None:
    server = ThreadServer(checkpoint(), decode_bytes=60_000_000)
    large = hostile.png(6000, 5000, zlib.compress(b"\0" * (6000 * 3 + 1) * 5000))  # 90 MB and more
    with ThreadPoolExecutor(2) as pool:
        sent = [pool.submit(server.send, "/v1/predict", large) for _ in range(2)]
        until(lambda: server.runner.images.used == 2 or any(one.done() for one in sent))
        assert server.send("/v1/predict", picture()).status == 200
        refused = [one.result() for one in sent]
    assert [(one.status, "needs more memory" in one.error) for one in refused] == [(422, True)] * 2
    assert server.stop() == 0


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_decoding_processes_end_with_the_server(model_file: Path) -> None:
    server = Server(model_file, "--workers", "2")
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda seed: server.send("/v1/predict", picture(seed, size=(900, 900))), range(8)))
    children = Path(f"/proc/{server.process.pid}/task/{server.process.pid}/children").read_text().split()
    threads = Path(f"/proc/{server.process.pid}/task").iterdir()
    children = [child for thread in threads for child in (thread / "children").read_text().split()] or children
    assert 1 <= len(children) <= 2
    server.process.kill()  # not even a signal that it could handle
    server.process.wait()
    until(lambda: not any(_alive(int(child)) for child in children))


def _alive(process: int) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def test_the_options_reach_the_processes(model_file: Path) -> None:
    server = Server(model_file, "--allow-format", "QOI", "--allow-format", "PPM", "--decode-seconds", "60")
    data = hostile.qoi(8, 8, b"\xfe\1\2\3" + b"\xc0" * 63)
    assert server.send("/v1/predict", data).status == 200
    assert server.send("/v1/predict", hostile.jpeg2000(precinct=15)).status == 422
    assert server.stop() == 0


@pytest.mark.parametrize(("path", "images"), [("/v1/predict", 1), ("/v1/predict", 2), ("/v1/look", 1)])
def test_a_refused_image_is_not_kept(path: str, images: int) -> None:
    """Neither in a circle of exception, traceback and future: those wait for a collector that comes after a hundred
    requests, and so did the bytes of all their images."""
    client = AppClient(checkpoint())
    upload = [b"x" * 100_000, picture()][:images]
    client.send(path, *upload)
    gc.collect()
    gc.disable()
    try:
        for _ in range(3):
            assert client.send(path, *upload).status == (422 if images == 1 else 200)
        ends = time.monotonic() + 10  # the thread that answered may hold the last one for a moment; a circle never ends
        while kept := [one for one in gc.get_objects() if type(one) is UnreadableImage]:
            assert time.monotonic() < ends, kept
            del kept
            time.sleep(0.01)
    finally:
        gc.enable()
        client.close()
