"""Who may ask: the token, names of the host, pages of other origins."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.serving.server import Server, ThreadServer, form, picture
from vitrail.serving.http_errors import HttpError
from vitrail.serving.middleware.access_policy import AccessPolicy

TOKEN = "a-token-of-some-length"
FRIEND = "https://friend.example"


@pytest.fixture(scope="module")
def guarded(model_file: Path) -> Iterator[ThreadServer]:
    access = AccessPolicy(TOKEN, frozenset({"vitrail.example"}), frozenset({FRIEND}))
    server = ThreadServer(model_file, access, model_file.parent / "samples")
    yield server
    assert server.stop() == 0


def test_the_address_carries_the_token_where_no_server_sees_it(guarded: ThreadServer) -> None:
    assert guarded.line == f"model.safetensors is served at http://127.0.0.1:{guarded.port}/#token={TOKEN}"


@pytest.mark.parametrize(
    "path", ["/v1/model", "/v1/predict", "/v1/samples/0", "/metrics", "/v1/nothing", "/docs", "/openapi.json"]
)
@pytest.mark.parametrize(
    "given", ["", "Bearer", "Bearer wrong", f"Basic {TOKEN}", f"Bearer {TOKEN}x", f"bearer{TOKEN}"]
)
def test_without_the_token_nothing_of_the_model_is_told(guarded: ThreadServer, path: str, given: str) -> None:
    response = guarded.get(path, Authorization=given)
    assert (response.status, response.headers["www-authenticate"]) == (401, "Bearer")
    assert response.error


def test_with_the_token(guarded: ThreadServer) -> None:
    for path in ("/v1/model", "/docs", "/openapi.json"):
        assert guarded.get(path, Authorization=f"Bearer {TOKEN}").status == 200
    body, kind = form(picture())
    assert guarded.ask("POST", "/v1/predict", body, {"Content-Type": kind}).status == 401
    allowed = {"Content-Type": kind, "Authorization": f"bearer {TOKEN}"}
    assert guarded.ask("POST", "/v1/predict", body, allowed).status == 200


@pytest.mark.parametrize("path", ["/healthz", "/readyz", "/", "/docs.css"])
def test_what_needs_no_token(guarded: ThreadServer, path: str) -> None:
    response = guarded.get(path)
    assert response.status == 200
    assert (
        b"classify" not in response.body and b"model.safetensors" not in response.body and b"plain" not in response.body
    )


def test_a_foreign_page_may_ask_if_it_was_allowed(guarded: ThreadServer) -> None:
    preflight = {"Origin": FRIEND, "Access-Control-Request-Method": "POST"}
    response = guarded.ask("OPTIONS", "/v1/predict", headers=preflight)
    assert (response.status, response.headers["access-control-allow-origin"]) == (204, FRIEND)
    assert "Authorization" in response.headers["access-control-allow-headers"]
    response = guarded.get("/v1/model", Authorization=f"Bearer {TOKEN}", Origin=FRIEND)
    assert (response.status, response.headers["access-control-allow-origin"], response.headers["vary"]) == (
        200,
        FRIEND,
        "Origin",
    )


def test_no_other_page_may(guarded: ThreadServer, server: Server) -> None:
    for origin in ("https://foe.example", "null", f"http://127.0.0.1:{guarded.port + 1}", "http://friend.example"):
        response = guarded.get("/v1/model", Authorization=f"Bearer {TOKEN}", Origin=origin)
        assert response.status == 403 and "access-control-allow-origin" not in response.headers
    assert server.get("/v1/model", Origin=FRIEND).status == 403
    assert server.ask("OPTIONS", "/v1/predict", headers={"Origin": FRIEND}).status == 403


def test_our_own_page_may(server: Server) -> None:
    response = server.get("/v1/model", Origin=f"http://127.0.0.1:{server.port}")
    assert response.status == 200 and "access-control-allow-origin" not in response.headers


@pytest.mark.parametrize(
    "host", ["localhost", "LOCALHOST:80", "127.0.0.1:1", "[::1]:8000", "192.168.1.7", "localhost."]
)
def test_addresses_and_localhost_are_answered(server: Server, host: str) -> None:
    assert server.get("/v1/model", Host=host).status == 200


@pytest.mark.parametrize("host", ["rebound.example", "localhost.foe.example", "127.0.0.1.foe.example", "", "::1]", "1"])
def test_a_name_that_points_here_is_not(server: Server, host: str) -> None:
    response = server.get("/v1/model", Host=host)
    assert response.status in (400, 403)


def test_a_name_that_was_allowed(guarded: ThreadServer) -> None:
    allowed = f"Bearer {TOKEN}"
    assert guarded.get("/v1/model", Host="vitrail.example:8000", Authorization=allowed).status == 200
    assert guarded.get("/v1/model", Host="other.example", Authorization=allowed).status == 403


def test_every_answer_carries_the_headers(server: Server) -> None:
    for path in ("/", "/healthz", "/v1/model", "/v1/nothing", "/docs", "/v1/samples/0"):
        headers = server.get(path).headers
        policy = headers["content-security-policy"]
        assert "default-src 'none'" in policy and "frame-ancestors 'none'" in policy
        assert "unsafe" not in policy and "http" not in policy
        assert (headers["x-content-type-options"], headers["referrer-policy"]) == ("nosniff", "no-referrer")
        assert "server" not in headers
    assert server.get("/v1/model").headers["cache-control"] == "no-store"


def test_any_origin_can_be_allowed() -> None:
    access = AccessPolicy(origins=frozenset({"*"}))
    assert access.check_origin({b"origin": b"https://a.example", b"host": b"localhost"}) == "https://a.example"
    with pytest.raises(HttpError):
        AccessPolicy().check_origin({b"origin": b"https://a.example", b"host": b"localhost"})
