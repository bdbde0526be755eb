"""/v1/search and /v1/index: what they answer, and what they refuse."""

from __future__ import annotations

import contextlib
import io
import os
import time
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import vitrail
from tests.serving.conftest import checkpoint
from tests.serving.server import Answer, Server, ThreadServer, form, hold_pool, picture, until
from tests.serving.test_abuse import png, post_head
from vitrail.errors import VitrailError
from vitrail.inference.engine import Engine
from vitrail.serving.middleware.access_policy import AccessPolicy
from vitrail.serving.served_index import ServedIndex

pytest.importorskip("pyarrow")
BOMB = png(50_000, 50_000, zlib.compress(b"\0" * 1_000_000))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, model_file: Path) -> Path:
    """30 pictures and an index of them, with a secret beside."""
    folder = tmp_path_factory.mktemp("indexed")
    (folder / "pictures").mkdir()
    for seed in range(30):
        (folder / "pictures" / f"{seed} <b>.png").write_bytes(picture(seed))
    (folder / "secret.png").write_bytes(picture(1000))
    vitrail.index(model_file, folder / "pictures", out=folder / "idx")
    return folder


@pytest.fixture(scope="module")
def server(folder: Path, model_file: Path) -> Iterator[ThreadServer]:
    server = ThreadServer(model_file, index=folder / "idx", bytes=3_000_000, pixels=4_000_000)
    yield server
    assert server.stop() == 0


def names(answer: Answer) -> list[str]:
    assert answer.status == 200, answer.body
    return [one["name"] for one in answer.json["results"]]


def test_the_pictures_most_like_one(server: ThreadServer, folder: Path) -> None:
    answer = server.send("/v1/search?top=5", picture(7))
    assert len(names(answer)) == 5 and names(answer)[0] == "7 <b>.png"
    found = vitrail.ImageIndex(folder / "idx").search(picture(7), 5)
    assert [one["id"] for one in answer.json["results"]] == [one.id for one in found]
    np.testing.assert_allclose(
        [one["score"] for one in answer.json["results"]], [one.score for one in found], atol=2e-3
    )
    assert str(folder) not in answer.body.decode() and len(names(server.send("/v1/search", picture(7)))) == 24


def test_go_on_from_one_of_them(server: ThreadServer) -> None:
    [first] = server.send("/v1/search?top=1", picture(3)).json["results"]
    answer = server.get(f"/v1/index/{first['id']}/similar?top=4")
    assert names(answer)[0] == "3 <b>.png" and len(names(answer)) == 4
    shown = server.get(f"/v1/index/{first['id']}/picture")
    assert shown.headers["content-type"] == "image/jpeg"
    assert Image.open(io.BytesIO(shown.body)).size == (32, 32)


@pytest.mark.parametrize(
    "id_", ["31", "99999999999999999", "-1", "a", "1.5", "..%2F..%2Fsecret.png", "%2e%2e", "1%00", "", "0x1", "\uff11"]
)
def test_only_pictures_of_the_index(server: ThreadServer, id_: str) -> None:
    from urllib.parse import quote

    for what in ("similar", "picture"):
        answer = server.get(f"/v1/index/{quote(id_, safe='%')}/{what}")
        assert answer.status == 404 and answer.error


def test_parameters_are_checked(server: ThreadServer) -> None:
    for query in ("top=0", "top=201", "top=x", "top=1&top=2", "box=1", "top=%201"):
        assert server.send(f"/v1/search?{query}", picture(1)).status == 422
    assert server.get("/v1/index/0/similar?top=0").error == "top is a whole number from 1 to 200"
    assert server.get("/v1/index/0/similar?what=1").status == 422
    assert server.ask("POST", "/v1/index/0/similar").status == 405


def test_hostile_uploads(server: ThreadServer) -> None:
    assert server.send("/v1/search", b"no image").status == 422
    assert server.send("/v1/search", BOMB).status == 422
    assert server.send("/v1/search", picture(1), picture(2)).status == 422
    assert server.ask("POST", "/v1/search", b"", {"Content-Type": "text/plain"}).status == 415


def test_hostile_files_in_the_index(model_file: Path, tmp_path: Path) -> None:
    """A file that was replaced after it was indexed: by no image, by a bomb, by a link to elsewhere."""
    pictures = tmp_path / "pictures"
    pictures.mkdir()
    for seed in range(6):
        (pictures / f"{seed}.png").write_bytes(picture(seed))
    vitrail.index(model_file, pictures, out=tmp_path / "idx")
    (pictures / "5.png").unlink()
    os.mkfifo(pictures / "5.png")
    (pictures / "0.png").write_bytes(b"no image")
    (pictures / "1.png").write_bytes(BOMB)
    (tmp_path / "secret.txt").write_text("secret")
    (pictures / "2.png").unlink()
    (pictures / "2.png").symlink_to(tmp_path / "secret.txt")
    (pictures / "3.png").unlink()
    (pictures / "4.png").write_bytes(bytes(3_500_000))
    server = ThreadServer(model_file, index=tmp_path / "idx", bytes=3_000_000, pixels=4_000_000)
    try:
        answers = [server.get(f"/v1/index/{id_}/picture") for id_ in range(6)]
        assert [answer.status for answer in answers] == [422, 422, 422, 404, 404, 404]
        assert all(b"secret" not in answer.body and str(tmp_path).encode() not in answer.body for answer in answers)
        assert len(names(server.send("/v1/search", picture(1)))) == 6
    finally:
        assert server.stop() == 0


@pytest.mark.parametrize("path", ["/v1/index/0/similar", "/v1/index/0/picture"])
def test_pictures_of_the_index_have_a_time_limit(
    server: ThreadServer, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    hold_pool(server, monkeypatch, seconds=0.1)
    answer = server.get(path)
    assert (answer.status, "took longer than 0.1 s" in answer.error) == (503, True)
    assert server.runner.images.used == 0


@pytest.mark.parametrize("path", ["/v1/index/0/similar", "/v1/index/0/picture"])
def test_who_hangs_up_waits_for_no_picture_of_the_index(
    server: ThreadServer, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    hold_pool(server, monkeypatch, seconds=600)
    with server.socket() as connection:
        connection.sendall(f"GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
        until(lambda: server.runner.images.used == 1)
    until(lambda: server.runner.images.used == 0)


def test_a_search_is_answered_in_time(server: ThreadServer, monkeypatch: pytest.MonkeyPatch) -> None:
    hold_pool(server, monkeypatch, seconds=0.5)
    assert server.send("/v1/search", picture(1)).status == 503


def test_a_search_waits_for_no_explanation(server: ThreadServer, monkeypatch: pytest.MonkeyPatch) -> None:
    def endless(*_: Any) -> None:
        while True:
            time.sleep(0.005)
            server.runner.model_thread.take_turns()

    monkeypatch.setattr("vitrail.serving.routes.explanation_routes.explain_image", endless)
    body, _ = form(picture())
    head = post_head(f"Content-Length: {len(body)}").replace(b"/v1/predict", b"/v1/explain")
    with contextlib.ExitStack() as stack:
        for _ in range(4):
            stack.enter_context(server.socket()).sendall(head + body)
        until(lambda: server.runner.explanations.used == 4)
        assert names(server.send("/v1/search?top=1", picture(7))) == ["7 <b>.png"]
    until(lambda: server.runner.explanations.used == 0)


def test_a_token_is_asked_for(folder: Path, model_file: Path) -> None:
    server = ThreadServer(model_file, AccessPolicy("secret-token"), index=folder / "idx")
    try:
        for path in ("/v1/index/0/similar", "/v1/index/0/picture"):
            assert server.get(path).status == 401
            assert server.get(path, Authorization="Bearer secret-token").status == 200
        assert server.send("/v1/search", picture(1)).status == 401
    finally:
        assert server.stop() == 0


def test_pictures_that_come_later_are_found(model_file: Path, tmp_path: Path) -> None:
    (tmp_path / "1.png").write_bytes(picture(1))
    (tmp_path / "2.png").write_bytes(picture(2))
    vitrail.index(model_file, tmp_path / "1.png", out=tmp_path / "idx")
    server = ThreadServer(model_file, index=tmp_path / "idx")
    try:
        assert names(server.send("/v1/search", picture(2))) == ["1.png"]
        vitrail.index(tmp_path / "idx", tmp_path / "2.png", add=True)
        assert names(server.send("/v1/search", picture(2))) == ["2.png", "1.png"]
        os.rename(tmp_path / "idx", tmp_path / "gone")
        assert names(server.send("/v1/search", picture(2))) == ["2.png", "1.png"]
    finally:
        assert server.stop() == 0


def test_the_index_of_another_model_is_refused(folder: Path) -> None:
    other = checkpoint()
    other.preprocessing = other.preprocessing.replace(mean=(0.1, 0.1, 0.1))
    with pytest.raises(VitrailError, match="was made with another model"):
        ServedIndex(folder / "idx", Engine.open(other))


def test_the_command_and_its_documentation(folder: Path, model_file: Path) -> None:
    server = Server(model_file, "--index", folder / "idx")
    try:
        assert server.get("/v1/model").json["index"] == 30
        assert names(server.send("/v1/search?top=1", picture(4))) == ["4 <b>.png"]
        assert {"/v1/search", "/v1/index/{id}/similar"} <= set(server.get("/openapi.json").json["paths"])
    finally:
        assert server.stop() == 0


def test_without_an_index_there_is_nothing(model_file: Path) -> None:
    server = ThreadServer(model_file)
    try:
        assert server.get("/v1/model").json["index"] is None
        assert server.send("/v1/search", picture(1)).status == 404
        assert server.get("/v1/index/0/picture").status == 404
    finally:
        assert server.stop() == 0
