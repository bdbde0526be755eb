"""Clients that a server has to stand, each as it was first seen: what they send, and what they may get for it.

A kind is a function of an address and of the images that honest clients send. It returns what came of it in a word: a
status, `closed` where the server ended the connection, or `left` where the client did.
"""

from __future__ import annotations

import contextlib
import functools
import json
import socket
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from tests.images import hostile

SECONDS = 60.0  # for an answer
SHARE = 0.05  # of all requests, for each kind
AT_ONCE = 48  # of a kind: some wait for seconds
EDGE = b'--edge\r\nContent-Disposition: form-data; name="image"; filename="a.jpg"\r\n\r\n'


@dataclass(frozen=True)
class Address:
    port: int
    host: str = "127.0.0.1"

    def connect(self) -> socket.socket:
        return socket.create_connection((self.host, self.port), SECONDS)


def form(*images: bytes) -> bytes:
    return b"".join(EDGE + image + b"\r\n" for image in images) + b"--edge--\r\n"


def head(path: str, *lines: str, kind: str = "multipart/form-data; boundary=edge") -> bytes:
    fields = ["Host: localhost", f"Content-Type: {kind}", *lines]
    return "\r\n".join([f"POST {path} HTTP/1.1", *fields, "", ""]).encode()


def post(address: Address, body: bytes, path: str = "/v1/predict", kind: str | None = None) -> tuple[str, bytes]:
    """A whole request on a connection of its own: what came of it, and the body of the answer."""
    length = f"Content-Length: {len(body)}"
    start = head(path, length) if kind is None else head(path, length, kind=kind)
    with address.connect() as connection:
        with contextlib.suppress(ConnectionError):  # it may be refused before all is sent; the answer tells
            connection.sendall(start + body)
        return answer(connection)


def answer(connection: socket.socket) -> tuple[str, bytes]:
    """The first response of a connection: its status, or `closed`, and its body."""
    received, length = bytearray(), None
    try:
        while length is None or len(received) < length:
            part = connection.recv(65536)
            if not part:
                break
            received += part
            if length is None and b"\r\n\r\n" in received:
                lines, _, rest = bytes(received).partition(b"\r\n\r\n")
                fields = dict(line.lower().split(b": ", 1) for line in lines.split(b"\r\n")[1:])
                length = len(received) - len(rest) + int(fields.get(b"content-length", 0))
    except ConnectionError:
        pass
    if length is None or len(received) < length:
        return "closed", b""
    return received[9:12].decode(), bytes(received).partition(b"\r\n\r\n")[2]


# ---- images


def one_image(make: Callable[[], bytes]) -> Callable[[Address, Sequence[bytes]], str]:
    body = functools.cache(lambda: form(make()))  # not at import: it takes time
    return lambda address, images: post(address, body())[0]


def size_zero_among_good(address: Address, images: Sequence[bytes]) -> str:
    """The good ones are answered, the bad one is an error in its place."""
    status, content = post(address, form(images[0], hostile.tiff_of_size(0, 0), images[1]))
    if status != "200":
        return status
    results = json.loads(content)["results"]
    return "200" if ["error" in one for one in results] == [False, True, False] else "mixed up"


# ---- connections


def announced(address: Address, images: Sequence[bytes]) -> str:
    """32 MB are announced, and none comes."""
    with address.connect() as connection:
        connection.sendall(head("/v1/predict", "Content-Length: 32000000"))
        return answer(connection)[0]


def dripped(address: Address, images: Sequence[bytes]) -> str:
    """A byte five times a second, for as long as the server bears it."""
    with address.connect() as connection:
        connection.sendall(head("/v1/predict", "Content-Length: 100000") + EDGE)
        connection.settimeout(0.2)
        end = time.monotonic() + SECONDS
        while time.monotonic() < end:
            try:
                connection.sendall(b"x")
                return answer(connection)[0]
            except TimeoutError:  # no answer yet
                continue
            except ConnectionError:
                return "closed"
    return "endured"


def explained(address: Address, images: Sequence[bytes]) -> str:
    """A long explanation is asked for, and its client leaves after a second."""
    body = form(images[0])
    with address.connect() as connection:
        connection.sendall(head("/v1/explain?method=occlusion", f"Content-Length: {len(body)}") + body)
        connection.settimeout(1.0)
        try:
            return answer(connection)[0]
        except TimeoutError:
            return "left"


def single_bytes(address: Address, images: Sequence[bytes]) -> str:
    """A body in chunks of one byte."""
    body = form(bytes(20_000))
    with address.connect() as connection:
        with contextlib.suppress(ConnectionError):
            connection.sendall(head("/v1/predict", "Transfer-Encoding: chunked"))
            connection.sendall(b"".join(b"1\r\n%c\r\n" % byte for byte in body))
        return answer(connection)[0]


def json_of_objects(address: Address, images: Sequence[bytes]) -> str:
    """30 MB that would become ten million objects."""
    return post(address, _ten_million_objects(), kind="application/json")[0]


@functools.cache
def _ten_million_objects() -> bytes:
    return b'{"images":[' + b"{}," * 10_000_000 + b"{}]}"


def two_lengths(address: Address, images: Sequence[bytes]) -> str:
    """Content-Length and Transfer-Encoding, and a second request behind."""
    body = form(images[0])
    chunked = b"%x\r\n%s\r\n0\r\n\r\n" % (len(body), body)
    start = head("/v1/predict", f"Content-Length: {len(chunked)}", "Transfer-Encoding: chunked")
    with address.connect() as connection:
        with contextlib.suppress(ConnectionError):
            connection.sendall(start + chunked + b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n")
        return answer(connection)[0]


@dataclass(frozen=True)
class Kind:
    """A hostile client, and what it may get."""

    act: Callable[[Address, Sequence[bytes]], str]
    allowed: frozenset[str]
    share: float  # of all requests
    at_once: int  # the others wait until one of these is done


def _kind(act: Any, *allowed: str, share: float = SHARE, at_once: int = AT_ONCE) -> Kind:
    return Kind(act, frozenset(allowed), share, at_once)


KINDS = {
    "JPEG 2000 of tiny precincts": _kind(one_image(hostile.jpeg2000), "422"),
    "TIFF in one giant tile": _kind(one_image(hostile.tiff_of_one_tile), "422"),
    "OME-TIFF of 100 million planes": _kind(one_image(hostile.ome_tiff), "422"),
    "PNG strip of 49 million pixels": _kind(one_image(hostile.png_strip), "422"),
    "TIFF of 1 x 1 tiles": _kind(one_image(hostile.tiff_of_small_tiles), "422"),
    "QOI": _kind(one_image(lambda: hostile.qoi(1000, 1000, b"\xfe\1\2\3" * 1_000_000)), "422"),
    # this one is decoded, for all the time that an image has: 5 % of such would be more than any decoder can do
    "JPEG of 49 million pixels in 200 scans": _kind(one_image(hostile.jpeg_of_scans), "422", share=0.001, at_once=1),
    "TIFF of size 0 among good images": _kind(size_zero_among_good, "200", "503"),
    "bodies that are only announced": _kind(announced, "408", "closed"),
    "bodies that drip": _kind(dripped, "408", "closed"),
    "explanations whose client leaves": _kind(explained, "left", "503", "200"),
    "chunks of one byte": _kind(single_bytes, "400", "closed"),
    "JSON of many objects": _kind(json_of_objects, "400", "closed", share=0.005, at_once=4),  # 30 MB each
    "two lengths": _kind(two_lengths, "400", "closed"),
}
