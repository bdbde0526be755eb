"""What a server meets: bodies too large, too slow, too many, and pictures that are not what they say."""

from __future__ import annotations

import contextlib
import io
import json
import struct
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from tests.serving.server import Server, ThreadServer, form, picture, until
from vitrail.serving.http_server.timeout_protocol import TimeoutProtocol


def png(width: int, height: int, data: bytes = b"") -> bytes:
    """A PNG whose header says so, with these compressed pixels."""
    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    chunks = [(b"IHDR", head), (b"IDAT", data), (b"IEND", b"")]
    parts = [struct.pack(">I", len(d)) + n + d + struct.pack(">I", zlib.crc32(n + d)) for n, d in chunks]
    return b"\x89PNG\r\n\x1a\n" + b"".join(parts)


def post_head(length: str) -> bytes:
    """The head of a request with a form, down to the empty line. length: the header that says how long the body is."""
    kind = form()[1]
    head = f"POST /v1/predict HTTP/1.1\r\nHost: localhost\r\nContent-Type: {kind}\r\n{length}\r\n\r\n"
    return head.encode()


def read_all(connection: object) -> bytes:
    answer = b""
    while part := connection.recv(65536):  # type: ignore[attr-defined]
        answer += part
    return answer


# ---- pictures


def test_a_bomb_is_refused_by_its_header(server: Server) -> None:
    bomb = png(50_000, 50_000, zlib.compress(b"\0" * 1_000_000))
    response = server.send("/v1/predict", bomb)
    assert (response.status, "pixels: make it smaller first" in response.error) == (422, True)
    slightly = png(2001, 2000, zlib.compress(b"\0" * 100))
    assert "more than 4,000,000" in server.send("/v1/predict", slightly).error


@pytest.mark.parametrize("size", [(1, 100_000), (100_000, 1), (4, 60_000)])
def test_a_strip_is_refused_before_it_is_blown_up(server: Server, size: tuple[int, int]) -> None:
    response = server.send("/v1/predict", picture(size=size))
    assert (response.status, "strip" in response.error) == (422, True)


def test_a_jpeg_of_too_many_scans_is_refused(server: Server) -> None:
    data = picture(form="JPEG", progressive=True)
    scans = data[data.rindex(b"\xff\xda") : -2]
    response = server.send("/v1/predict", data[:-2] + scans * 300 + b"\xff\xd9")
    assert (response.status, "scans" in response.error) == (422, True)


def test_an_array_that_lies_about_its_size_is_refused(server: Server) -> None:
    buffer = io.BytesIO()
    np.save(buffer, np.zeros((8, 8, 3), np.uint8))
    assert server.send("/v1/predict", buffer.getvalue()).status == 200
    response = server.send("/v1/predict", buffer.getvalue().replace(b"(8, 8, 3)", b"(8000, 80, 3)"))
    assert (response.status, "truncated" in response.error) == (422, True)
    pickled = io.BytesIO()
    np.save(pickled, np.array([[print]], dtype=object), allow_pickle=True)
    assert server.send("/v1/predict", pickled.getvalue()).status == 422


@pytest.mark.parametrize(
    "data", [b"", b"\0" * 5000, b"<svg onload=alert(1)>", b"%!PS-Adobe EPSF", b"GIF89a", b"\xff\xd8\xff"]
)
def test_what_is_no_image_is_refused(server: Server, data: bytes) -> None:
    response = server.send("/v1/look", data)
    assert response.status == 422
    assert response.error.startswith("the image ")


# ---- bodies


@pytest.fixture(scope="module")
def impatient(model_file: Path) -> Iterator[ThreadServer]:
    """For clients that send nothing: it waits for them but a moment."""
    server = ThreadServer(model_file, patience=0.1)
    yield server
    assert server.stop() == 0


def test_too_many_bytes_are_refused_before_they_are_read(server: Server) -> None:
    with server.socket() as connection:
        connection.sendall(post_head("Content-Length: 4000000000"))
        response = read_all(connection)
    assert response.startswith(b"HTTP/1.1 413 ") and b"connection: close" in response


def test_too_many_bytes_without_a_length_are_refused(server: Server) -> None:
    with server.socket() as connection:
        connection.sendall(post_head("Transfer-Encoding: chunked"))
        chunk = b"%x\r\n" % 65536 + b"x" * 65536 + b"\r\n"
        try:
            for _ in range(200):
                connection.sendall(chunk)
        except OSError:
            return  # it has closed the connection, which is an answer too
        assert b" 4" in read_all(connection)[:16]


def test_too_many_images_are_refused(server: Server) -> None:
    images = [picture(seed) for seed in range(9)]
    assert server.send("/v1/predict", *images).status == 413
    assert server.send_json("/v1/predict", {"images": [""] * 9}).status == 413
    assert server.send("/v1/look", *images[:2]).status == 422
    assert server.send("/v1/predict", *images[:8]).status == 200


def test_a_body_that_comes_too_slowly_is_refused(impatient: ThreadServer) -> None:
    body, _ = form(picture())
    with impatient.socket() as connection:
        connection.sendall(post_head(f"Content-Length: {len(body)}") + body[:50])
        response = read_all(connection)
    assert response.startswith(b"HTTP/1.1 408 ") and b"too slowly" in response


@pytest.mark.parametrize("start", [b"", b"GET / HT", b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nX-"])
def test_headers_that_never_end_are_not_waited_for(impatient: ThreadServer, start: bytes) -> None:
    with impatient.socket() as connection:
        connection.sendall(start)
        with contextlib.suppress(ConnectionResetError):
            assert read_all(connection) == b""


def test_a_second_request_whose_headers_never_end(impatient: ThreadServer) -> None:
    with impatient.socket() as connection:
        connection.sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\nGET /healthz HTTP/1.1\r\nHo")
        with contextlib.suppress(ConnectionResetError):
            assert read_all(connection).startswith(b"HTTP/1.1 200 ")


FORM, JSON = "multipart/form-data; boundary=edge", "application/json"
BROKEN_JSON = [b"{", b"\xff\xfe", b"[" * 200_000, b"9" * 5000]
OTHER_JSON = [
    b"[]",
    b'{"images": []}',
    b'{"images": [1]}',
    b'{"images": ["####"]}',
    b'{"images": ["\xc3\xa9"]}',
    b'{"images": [""], "paths": ["/etc/passwd"]}',
]


@pytest.mark.parametrize(
    ("kind", "body", "status"),
    [
        ("text/plain", b"x", 415),
        ("", b"x", 415),
        ("image/jpeg", picture(form="JPEG"), 415),
        ("multipart/form-data", b"x", 400),
        (FORM, b"x", 400),
        (FORM, b"--edge\r\n\r\nx\r\n--edge--\r\n", 400),
        (FORM, b"--edge--\r\n", 422),
        *((JSON, body, 400) for body in BROKEN_JSON),
        *((JSON, body, 422) for body in OTHER_JSON),
    ],
)
def test_wrong_types_are_refused(server: Server, kind: str, body: bytes, status: int) -> None:
    response = server.ask("POST", "/v1/predict", body, {"Content-Type": kind})
    assert response.status == status, response.body
    assert response.error


def test_other_fields_and_texts_are_refused(server: Server) -> None:
    body, kind = form(picture(), name="picture")
    assert server.ask("POST", "/v1/predict", body, {"Content-Type": kind}).status == 422
    text = b'--edge\r\nContent-Disposition: form-data; name="image"\r\n\r\ntext\r\n--edge--\r\n'
    response = server.ask("POST", "/v1/predict", text, {"Content-Type": FORM})
    assert response.status == 422


def test_rubbish_instead_of_http(server: Server) -> None:
    for rubbish in (b"\x16\x03\x01\x02\0\x01\0", b"GET\r\n\r\n", b"GET / HTTP/1.1\r\n\r\n", b"\0" * 70_000):
        with server.socket() as connection:
            try:
                connection.sendall(rubbish)
                response = read_all(connection)
            except ConnectionResetError:
                continue
            assert response == b"" or response.startswith(b"HTTP/1.1 400 Bad Request\r\n"), response
            assert response == b"" or list(json.loads(response.partition(b"\r\n\r\n")[2])) == ["error"]
    assert server.get("/healthz").status == 200


def test_a_refused_body_does_not_spoil_the_connection(server: Server) -> None:
    connection = server.connection()
    assert server.send("/v1/nothing", picture(), connection=connection).status == 404
    assert server.send("/v1/predict?top=0", picture(), connection=connection).status == 422
    assert server.send("/v1/predict", picture(), connection=connection).status == 200
    connection.close()


# ---- paths


@pytest.mark.parametrize(
    "path",
    [
        "/web/../app.py",
        "/web/%2e%2e/app.py",
        "/web/..%2fapp.py",
        "/web//etc/passwd",
        "/web/",
        "/v1/samples/../model",
        "/v1/samples/-1",
        "/v1/samples/0/",
        "/v1/samples/notes.txt",
        "//etc/passwd",
        "/web/..\\app.py",
        "/web/%00",
    ],
)
def test_no_path_opens_a_file(server: Server, path: str) -> None:
    response = server.get(path)
    assert response.status == 404
    assert response.error


def test_addresses_that_nobody_knows_are_one_in_the_metrics(server: Server) -> None:
    for path in ('/"}', "/web/new", "/v1/samples/77", "/x\n"):
        server.get(path.replace("\n", "%0a"))
    response = server.get("/metrics").body
    assert b'path="/web/"' in response and b'path="other"' in response
    assert b"/new" not in response and b"/77" not in response


def test_what_it_says_of_errors_is_small(server: Server) -> None:
    response = server.send_json("/v1/predict", {"images": ["A" * 100_000]})
    assert len(response.body) < 500
    assert json.loads(response.body)
    assert Path(__file__).parent.as_posix() not in response.body.decode()


# ---- connections


def test_more_connections_than_there_are_places(server: Server) -> None:
    from vitrail.serving.limits import Limits

    with contextlib.ExitStack() as stack:
        response = b""
        for _ in range(Limits().connections + 8):
            connection = stack.enter_context(server.socket())
        with contextlib.suppress(ConnectionResetError):
            response = read_all(connection)
        assert response == b"" or response.startswith(b"HTTP/1.1 503 ")
    until(lambda: server.get("/healthz").status == 200)


class Reader:
    """A connection's far end that reads so many bytes between two looks at it."""

    def __init__(self, *unread: int) -> None:
        self.unread, self.aborted = list(unread), False

    def get_write_buffer_size(self) -> int:
        return self.unread.pop(0)

    def abort(self) -> None:
        self.aborted = True

    def call_later(self, seconds: float, work: Callable[[], None]) -> None:
        work()


@pytest.mark.parametrize(("unread", "aborted"), [((0,), False), ((9, 5, 0), False), ((9, 5, 5), True), ((9, 9), True)])
def test_a_reader_who_never_reads_is_not_waited_for(unread: tuple[int, ...], aborted: bool) -> None:
    protocol = object.__new__(TimeoutProtocol)
    protocol._unread_bytes = -1
    protocol.transport = protocol.loop = reader = Reader(*unread)  # type: ignore[assignment]
    protocol._watch_reader()
    assert reader.aborted == aborted and reader.unread == []
