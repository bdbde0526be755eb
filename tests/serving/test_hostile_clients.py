"""Clients that announce, drip, split and send twice: nobody else notices them."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import json
import signal
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import h11
import pytest

from tests.serving import test_places
from tests.serving.conftest import checkpoint
from tests.serving.server import Server, ThreadServer, async_test, form, hold_pool, picture, until
from tests.serving.test_abuse import post_head, read_all
from vitrail.errors import VitrailError
from vitrail.serving.batching import Abandoned, ModelThread
from vitrail.serving.http_errors import HttpError
from vitrail.serving.http_server.timeout_protocol import FREE_PIECES, PieceLimit
from vitrail.serving.limits import Capacity, Limits
from vitrail.serving.middleware.request_body import RequestBody
from vitrail.serving.server import bind_socket
from vitrail.serving.uploads import _images_from_json


@pytest.fixture(scope="module")
def small() -> Iterator[ThreadServer]:
    """A server that stands two megabytes of uploads at a time."""
    server = ThreadServer(checkpoint(), upload_bytes=2_000_000, bytes=1_000_000)
    yield server
    assert server.stop() == 0


# ---- bodies


def test_what_is_only_announced_takes_no_place(small: ThreadServer) -> None:
    with contextlib.ExitStack() as stack:
        for _ in range(16):
            connection = stack.enter_context(small.socket())
            connection.sendall(post_head("Content-Length: 1000000"))
        until(lambda: small.metric("vitrail_requests_in_hand") == 17)
        assert small.send("/v1/predict", picture()).status == 200


def test_what_has_arrived_takes_a_place_until_it_is_answered(small: ThreadServer) -> None:
    body, _ = form(b"x" * 950_000)
    with contextlib.ExitStack() as stack:
        for _ in range(2):
            connection = stack.enter_context(small.socket())
            connection.sendall(post_head(f"Content-Length: {len(body)}") + body[:-1])
        until(lambda: small.app.uploads.used == 2 * len(body) - 2)
        assert small.send("/v1/predict", picture(size=(400, 400))).status == 503
    until(lambda: small.app.uploads.used == 0)
    assert small.send("/v1/predict", picture(size=(400, 400))).status == 200


class Clock:
    """Time for a request's body: `parts` are (seconds before it arrives, bytes)."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, parts: list[tuple[float, int]]) -> None:
        self.now, self.parts = 0.0, parts
        clock = SimpleNamespace(monotonic=lambda: self.now)  # for this module alone: event loops go by the real one
        monkeypatch.setattr("vitrail.serving.middleware.request_body.time", clock)

    async def receive(self) -> dict[str, Any]:
        seconds, size = self.parts.pop(0)
        self.now += seconds
        return {"type": "http.request", "body": b"x" * size, "more_body": True}


@pytest.mark.parametrize(
    ("parts", "slow"),
    [
        ([(1.0, 1000)] * 10, False),  # the first seconds are free
        ([(1.0, 16_000)] * 60, False),
        ([(1.0, 1000)] * 20, True),
        ([(0.1, 3_000_000), *[(4.0, 1)] * 5], True),  # what was sent at once is no credit for later
        ([(9.0, 200_000)] * 5, False),
        ([(5.0, 0), (5.0, 100), (5.0, 0), (5.0, 100)], True),
    ],
)
@async_test
async def test_a_body_keeps_up_a_speed(
    monkeypatch: pytest.MonkeyPatch, parts: list[tuple[float, int]], slow: bool
) -> None:
    clock = Clock(monkeypatch, parts)
    limits = Limits(patience=10.0, bytes_per_second=16_000)
    body = RequestBody(clock.receive, limits, {b"content-length": b"9000000"}, Capacity(10**9, "tests"))
    late = False
    while clock.parts:
        before = body.deadline
        await body()
        late = late or clock.now > before
    assert late == slow


def test_both_lengths_are_refused_and_the_connection_closed(server: Server) -> None:
    body, _ = form(picture())
    chunked = b"%x\r\n%s\r\n0\r\n\r\n" % (len(body), body)
    with server.socket() as connection:
        connection.sendall(post_head(f"Content-Length: {len(chunked)}\r\nTransfer-Encoding: chunked") + chunked)
        connection.sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
        with contextlib.suppress(ConnectionResetError):
            answer = read_all(connection)
            assert answer.startswith(b"HTTP/1.1 400 ") and b"connection: close" in answer and b"alive" not in answer


def test_a_body_of_single_bytes_is_refused(server: Server) -> None:
    body, _ = form(b"x" * 20_000)
    chunks = b"".join(b"1\r\n%c\r\n" % byte for byte in body)
    with server.socket() as connection, contextlib.suppress(ConnectionResetError, BrokenPipeError):
        connection.sendall(post_head("Transfer-Encoding: chunked") + chunks)
        assert read_all(connection).startswith(b"HTTP/1.1 400 ")
    assert server.get("/healthz").status == 200


@pytest.mark.parametrize(("size", "refused"), [(1, True), (63, True), (64, False), (5000, False)])
def test_pieces_have_a_size(size: int, refused: bool) -> None:
    connection = PieceLimit(h11.SERVER)
    connection.receive_data(b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n")
    assert isinstance(connection.next_event(), h11.Request)
    count = 0
    with pytest.raises(h11.RemoteProtocolError) if refused else contextlib.nullcontext():
        for _ in range(2 * FREE_PIECES):
            connection.receive_data(b"%x\r\n%s\r\n" % (size, b"x" * size))
            assert isinstance(connection.next_event(), h11.Data)
            count += 1
    assert count == (FREE_PIECES if refused else 2 * FREE_PIECES)


@pytest.mark.parametrize("filling", [b"{},", b"[],", b'"",', b"1.5,", b'"ab",'])
def test_json_of_many_things_is_not_parsed(monkeypatch: pytest.MonkeyPatch, filling: bytes) -> None:
    monkeypatch.setattr(json, "loads", lambda body: pytest.fail("it was parsed"))
    body = b'{"images":[' + filling * 1_000_000 + b'""]}'
    with pytest.raises(HttpError) as refused:
        _images_from_json(body, Limits())
    assert refused.value.status_code in (400, 413)


def test_data_urls_are_still_images(server: Server) -> None:
    import base64

    url = "data:image/png;base64," + base64.b64encode(picture()).decode()
    assert server.send_json("/v1/predict", {"images": [url] * 8}).status == 200


# ---- numbers


def test_counters_are_exact_beyond_a_million() -> None:
    from vitrail.serving.server_metrics import ServerMetrics

    metrics = ServerMetrics()
    for images, expected in ((1_234_567, 1_234_567), (1, 1_234_568), (9_876_543_210, 9_877_777_778)):
        metrics.count_batch(images, 0.5)
        line = next(line for line in metrics.text().decode().splitlines() if line.startswith("vitrail_images_total"))
        assert float(line.split()[1]) == expected


# ---- stopping


def test_the_end_does_not_wait_for_a_client_that_drips(model_file: Path) -> None:
    server = Server(model_file, "--stop-seconds", "1", "--patience", "60")
    with server.socket() as connection:
        connection.sendall(post_head("Content-Length: 100000") + form(b"x" * 50)[0][:100])
        stop = threading.Event()

        def drip() -> None:
            with contextlib.suppress(OSError):
                while not stop.wait(0.05):
                    connection.sendall(b"x")

        dripping = threading.Thread(target=drip)
        dripping.start()
        until(lambda: server.metric("vitrail_requests_in_hand") == 2)
        server.process.send_signal(signal.SIGTERM)
        try:
            assert server.process.wait(60) == 0
        finally:
            stop.set()
            dripping.join()
    until(lambda: server.said)
    assert server.said == ["vitrail: dropped 1 request that did not end within 1 s\n"]


def test_a_second_server_on_a_port_fails_before_it_loads_its_model() -> None:
    with bind_socket("127.0.0.1", 0) as first, pytest.raises(VitrailError, match="cannot listen on"):
        bind_socket("127.0.0.1", first.getsockname()[1])


# ---- explanations


class Turns:
    """A model thread whose long function does `steps` steps, each after `take_turns`, as far as the test lets it."""

    def __init__(self) -> None:
        self.done: list[Any] = []
        self.step = threading.Semaphore(0)
        self.thread: ModelThread[int] = ModelThread(self.run_batch, 4)

    def run_batch(self, parts: Any) -> list[int]:
        self.done.append(list(parts))
        return list(parts)

    def long(self, steps: int = 5) -> str:
        for number in range(steps):
            assert self.step.acquire(timeout=60)
            self.thread.take_turns()
            self.done.append(number)
        return "explained"


@async_test
async def test_images_have_their_turn_between_the_batches_of_an_explanation() -> None:
    turns = Turns()
    explanation = asyncio.ensure_future(turns.thread.call_long(turns.long))
    turns.step.release()
    while turns.done != [0]:
        await asyncio.sleep(0.01)
    images = [asyncio.ensure_future(turns.thread.submit(number)) for number in (10, 20)]
    while turns.thread.queue_length < 2:
        await asyncio.sleep(0.01)
    turns.step.release()
    assert await asyncio.gather(*images) == [10, 20]  # long before the explanation is done
    assert not explanation.done()
    for _ in range(3):
        turns.step.release()
    assert await explanation == "explained"
    assert turns.done == [0, [10, 20], 1, 2, 3, 4]
    turns.thread.stop()


@async_test
async def test_other_work_has_its_turn_between_the_batches_of_an_explanation() -> None:
    """A search, or a prediction in sliding windows: it does not wait for the explanations before it."""
    turns = Turns()
    explanations = [asyncio.ensure_future(turns.thread.call_long(turns.long)) for _ in range(2)]
    while turns.thread.queue_length != 1:  # the first has begun
        await asyncio.sleep(0.01)
    searches = [asyncio.ensure_future(turns.thread.call(lambda one=one: turns.done.append(one))) for one in "ab"]
    image = asyncio.ensure_future(turns.thread.submit(10))
    while turns.thread.queue_length < 4:
        await asyncio.sleep(0.01)
    for _ in range(2):
        turns.step.release()
    await asyncio.wait_for(asyncio.gather(image, *searches), 60)
    assert not any(one.done() for one in explanations)
    for _ in range(8):
        turns.step.release()
    await asyncio.gather(*explanations)
    assert turns.done == [[10], "a", 0, "b", 1, 2, 3, 4, 0, 1, 2, 3, 4]
    turns.thread.stop()


@async_test
async def test_work_between_the_batches_of_an_explanation_takes_turns_itself() -> None:
    """Pictures go between its windows; it ends with its client, and the explanation goes on."""
    turns = Turns()
    explanation = asyncio.ensure_future(turns.thread.call_long(lambda: turns.done.append("begun") or turns.long(2)))
    while turns.done != ["begun"]:
        await asyncio.sleep(0.01)
    windows = asyncio.ensure_future(turns.thread.call(turns.long))
    other = asyncio.ensure_future(turns.thread.call(lambda: turns.done.append("other")))
    while turns.thread.queue_length < 2:
        await asyncio.sleep(0.01)
    turns.step.release()
    turns.step.release()
    while turns.done != ["begun", 0]:  # the first window, within the first turn that the explanation gave
        await asyncio.sleep(0.01)
    image = asyncio.ensure_future(turns.thread.submit(10))
    while turns.thread.queue_length < 2:
        await asyncio.sleep(0.01)
    turns.step.release()
    assert await image == 10
    while turns.done != ["begun", 0, [10], 1]:
        await asyncio.sleep(0.01)
    windows.cancel()
    await asyncio.wait([windows])
    turns.step.release()
    turns.step.release()
    await asyncio.gather(explanation, other)
    assert turns.done == ["begun", 0, [10], 1, 0, "other", 1]
    turns.thread.stop()


@async_test
async def test_an_explanation_ends_with_its_client() -> None:
    turns = Turns()
    explanation = asyncio.ensure_future(turns.thread.call_long(turns.long))
    turns.step.release()
    while turns.done != [0]:
        await asyncio.sleep(0.01)
    explanation.cancel()
    await asyncio.sleep(0.05)
    for _ in range(4):
        turns.step.release()
    assert await turns.thread.submit(7) == 7  # the thread is free
    assert turns.done == [0, [7]]
    turns.thread.stop()


@pytest.mark.parametrize("left", [True, False], ids=["its client leaves", "it fails"])
@async_test
async def test_what_an_explanation_held_is_freed_when_it_ends(left: bool) -> None:
    """Not when the collector comes: in a circle of exception, traceback and results were all tensors of each."""

    class Failure(Exception): ...

    turns = Turns()

    def long() -> None:
        assert turns.step.acquire(timeout=60)
        turns.thread.take_turns()
        raise Failure

    gc.collect()
    gc.disable()
    try:
        explanation = asyncio.ensure_future(turns.thread.call_long(long))
        while turns.thread.queue_length:
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.01)
        if left:
            explanation.cancel()
        turns.step.release()
        await asyncio.wait([explanation])
        assert left or isinstance(explanation.exception(), Failure)
        del explanation
        assert await turns.thread.submit(7) == 7  # the thread has done with it
        assert not [one for one in gc.get_objects() if type(one) in (Abandoned, Failure)]
    finally:
        gc.enable()
        turns.thread.stop()


def test_predictions_are_answered_while_explanations_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """All places of explanations are taken, by ones that would never end; predictions go on, --seconds ends them."""
    server = ThreadServer(checkpoint(), seconds=2.0)
    ended: list[type[BaseException]] = []

    def endless(*_: Any) -> Any:
        try:
            while True:
                time.sleep(0.005)
                server.runner.model_thread.take_turns()
        except Abandoned as error:
            ended.append(type(error))
            raise

    monkeypatch.setattr("vitrail.serving.routes.explanation_routes.explain_image", endless)
    with ThreadPoolExecutor(4) as pool:
        explained = [pool.submit(server.send, "/v1/explain", picture()) for _ in range(4)]
        until(lambda: server.runner.explanations.used == 4)
        for seed in range(10):
            assert server.send("/v1/predict", picture(seed)).status == 200
        assert {one.result().status for one in explained} == {503}
    until(lambda: ended and server.runner.model_thread.queue_length == 0)
    assert server.send("/v1/predict", picture()).status == 200
    assert server.stop() == 0


@pytest.mark.parametrize("path", ["/v1/predict", "/v1/look"])
def test_a_picture_in_windows_gives_turns_and_ends_with_its_client(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    server = ThreadServer(test_places.checkpoint("segment", "mask_linear", "window"))
    engine, go, batches = server.runner.served.engine, threading.Semaphore(0), list[int]()
    engine.batch_size, forward = 4, engine.forward

    def held(images: Any, capture: Any = None) -> Any:
        batches.append(len(images))
        assert go.acquire(timeout=60)
        return forward(images, capture)

    monkeypatch.setattr(engine, "forward", held)
    with ThreadPoolExecutor(1) as pool, server.socket() as connection:
        body, _ = form(picture(size=(110, 110)))
        head = post_head(f"Content-Length: {len(body)}").replace(b"/v1/predict", path.encode())
        connection.sendall(head + body)
        if path == "/v1/look":
            go.release()  # the pass that its maps are from
        until(lambda: batches[-1:] == [4])
        embedded = pool.submit(server.send, "/v1/embed", picture())
        until(lambda: server.runner.model_thread.queue_length == 1)
        go.release(2)
        assert embedded.result().status == 200
        until(lambda: batches[-3:] == [4, 1, 4])
        connection.close()
        until(lambda: server.runner.images.used == 0)
        go.release(100)
    assert server.send("/v1/embed", picture()).status == 200
    assert batches[-4:] == [4, 1, 4, 1]
    assert server.stop() == 0


@pytest.fixture(scope="module")
def masks() -> Iterator[ThreadServer]:
    """A server whose answers are masks, which are written as PNGs in the pool."""
    server = ThreadServer(test_places.checkpoint("segment", "mask_linear", "pad"))
    yield server
    assert server.stop() == 0


@pytest.mark.parametrize("path", ["/v1/predict", "/v1/walk", "/v1/attention"])
def test_writing_an_answer_has_a_time_limit(masks: ThreadServer, path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    hold_pool(masks, monkeypatch, seconds=0.5)
    body, kind = form(picture())
    answer = masks.ask("POST", path, body, {"Content-Type": kind, "Accept": "application/json"})
    assert (answer.status, "took longer than 0.5 s" in answer.error) == (503, True)


def test_who_hangs_up_waits_for_no_masks(masks: ThreadServer, monkeypatch: pytest.MonkeyPatch) -> None:
    hold_pool(masks, monkeypatch, seconds=600)
    body, _ = form(picture())
    with masks.socket() as connection:
        connection.sendall(post_head(f"Content-Length: {len(body)}") + body)
        until(lambda: masks.metric("vitrail_images_total") > 0)
        time.sleep(0.1)
        assert masks.runner.images.used == 1  # its place is taken until all is written
    until(lambda: masks.runner.images.used == 0)
