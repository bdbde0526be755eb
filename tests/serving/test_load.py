"""Many clients: each gets its own answer, too many are sent away, who hangs up frees a place, SIGTERM waits."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import vitrail
from tests.serving.server import SECONDS, Answer, Server, ThreadServer, form, picture, until

CLIENTS, EACH = 16, 12
SLOW = "/v1/explain?method=occlusion"


def in_threads(work: Callable[[int], Answer], number: int) -> list[Answer]:
    with ThreadPoolExecutor(number) as pool:
        return list(pool.map(work, range(number)))


def test_every_client_gets_the_answer_to_its_own_image(server: Server, model_file: Path) -> None:
    images = [picture(seed) for seed in range(CLIENTS * EACH)]
    expected = vitrail.load(model_file).predict(images)
    before = server.metric("vitrail_batches_total")
    results: dict[int, dict] = {}

    def client(number: int) -> None:
        connection = server.connection()
        for place in range(number * EACH, (number + 1) * EACH):
            path = "/v1/predict" if place % 4 else "/v1/embed"  # mixed: they share the batches
            response = server.send(path, images[place], connection=connection)
            assert response.status == 200
            if place % 4:
                (results[place],) = response.json["results"]
        connection.close()

    threads = [threading.Thread(target=client, args=(number,)) for number in range(CLIENTS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(results) == len(images) * 3 // 4
    for place, answer in results.items():
        assert answer["label"] == expected[place]["label"]
        assert answer["probability"] == pytest.approx(expected[place]["probability"], abs=1e-4)
    assert len({round(answer["probability"], 6) for answer in expected}) > len(images) * 0.9  # so a mix-up would show
    assert server.metric("vitrail_batches_total") - before < len(images)  # some went together


@pytest.fixture
def busy() -> Iterator[Server]:
    """A model for which an explanation takes a while, and a server that stands few of them."""
    access = ("--allow-host", "Vitrail.Example", "--allow-origin", "https://friend.example")
    server = Server("Ti/32", "--patience", str(SECONDS), *access)
    yield server
    server.process.kill()
    server.process.wait()


def test_full_cancelled_and_stopped(busy: Server) -> None:
    # the options of the command reach the server
    assert busy.get("/healthz", Host="vitrail.example").status == 200
    assert busy.get("/healthz", Origin="https://friend.example").status == 200
    assert busy.get("/healthz", Origin="https://foe.example").status == 403
    # more explanations than it takes: those beyond are told to come back
    response = in_threads(lambda _: busy.send(SLOW, picture()), 8)
    refused = [one for one in response if one.status == 503]
    assert {one.status for one in response} == {200, 503}
    assert all(1 <= int(one.headers["retry-after"]) <= 60 and "busy" in one.error for one in refused)
    assert busy.metric("vitrail_refused_total") == 1 + len(refused)  # with the foe

    # clients that hang up: their places are free again, and whoever comes finds one
    body, kind = form(picture())
    request = f"POST {SLOW} HTTP/1.1\r\nHost: localhost\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\n\r\n"
    connections = [busy.socket() for _ in range(4)]
    for connection in connections:
        connection.sendall(request.encode() + body)
    until(lambda: busy.metric("vitrail_images_in_hand") == 4)
    assert busy.send(SLOW, picture()).status == 503
    for connection in connections:
        connection.close()
    until(lambda: busy.metric("vitrail_images_in_hand") == 0)
    assert busy.metric("vitrail_jobs_waiting") == 0
    assert busy.send("/v1/predict", picture()).status == 200

    # told to stop: what is in hand is finished, even what is still being sent; what comes is refused; then it is gone
    with busy.socket() as sending, ThreadPoolExecutor(1) as pool:
        request = request.replace(SLOW, "/v1/predict").replace("\r\n\r\n", "\r\nConnection: close\r\n\r\n")
        sending.sendall(request.encode() + body[:100])
        explained = pool.submit(busy.send, SLOW, picture())
        until(lambda: busy.metric("vitrail_images_in_hand") == 1)
        until(lambda: busy.metric("vitrail_requests_in_hand") == 3)  # with the one that asks
        busy.process.send_signal(signal.SIGTERM)
        until(lambda: busy.get("/readyz").status == 503)
        late = busy.send("/v1/predict", picture())
        assert (late.status, late.headers["retry-after"]) == (503, "1")
        assert busy.get("/healthz").status == 200
        assert explained.result().status == 200
        sending.sendall(body[100:])
        assert sending.makefile("rb").readline() == b"HTTP/1.1 200 OK\r\n"
    assert busy.process.wait(SECONDS) == 0
    assert busy.said == []


def test_a_preset_without_a_head_serves_what_it_can(tmp_path: Path) -> None:
    from vitrail.model.presets import preset
    from vitrail.model.vit import ViT
    from vitrail.weights.checkpoint import Checkpoint
    from vitrail.weights.preprocessing import Preprocessing

    config = preset("mu/4", classes=0, image_size=16, cls_token=False, pool="mean")
    path = Checkpoint(ViT(config), Preprocessing(size=config.image_size), "embed").save(tmp_path / "m.safetensors")
    server = ThreadServer(path)
    response = server.get("/v1/model").json
    assert (response["task"], response["labels"], response["prefix"]) == ("embed", None, [])
    assert response["methods"] == ["relevance", "weighted_attention", "rollout", "occlusion"]
    refused = server.send("/v1/predict", picture())
    assert (refused.status, "no head" in refused.error) == (422, True)
    assert server.send("/v1/embed", picture()).json["width"] == config.width
    assert server.send("/v1/look", picture()).status == 200
    assert server.send("/v1/attention?query=0,0", picture()).status == 200
    assert server.send("/v1/attention?query=cls", picture()).status == 422
    assert server.send("/v1/explain", picture()).json["label"] is None
    assert server.send("/v1/explain?label=cat", picture()).status == 422
    assert server.send("/v1/walk", picture()).status == 200
    assert server.stop() == 0
