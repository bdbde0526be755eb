"""Servers for tests, in a process, in a thread or without a socket, and the few ways of asking them."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import http.client
import io
import json
import os
import re
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import numpy as np
from PIL import Image

from vitrail.inference.engine import Engine, open_model
from vitrail.serving.app import create_app
from vitrail.serving.http_server.draining_server import create_server
from vitrail.serving.job_runner import JobRunner
from vitrail.serving.middleware.access_policy import AccessPolicy
from vitrail.serving.middleware.security import SecurityMiddleware
from vitrail.serving.routes.static_files import read_samples
from vitrail.serving.served_index import ServedIndex
from vitrail.serving.served_model import ServedModel
from vitrail.serving.server import bind_socket, limits_from_options, print_address
from vitrail.weights.checkpoint import Checkpoint

SECONDS = 120  # for anything at all, on a machine with much else to do


@dataclass
class Answer:
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def error(self) -> str:
        value = self.json
        assert list(value) == ["error"], value
        return value["error"]


class Client:
    """Requests to a server at `host` and `port`."""

    host: str
    port: int

    def connection(self) -> http.client.HTTPConnection:
        return http.client.HTTPConnection(self.host, self.port, timeout=SECONDS)

    def socket(self) -> socket.socket:
        return socket.create_connection((self.host, self.port), SECONDS)

    def ask(
        self,
        method: str,
        path: str,
        body: bytes | None = None,
        headers: dict[str, str] | None = None,
        connection: http.client.HTTPConnection | None = None,
    ) -> Answer:
        return self.exchange(method, path, body, headers or {}, connection)

    def exchange(self, method: str, path: str, body: bytes | None, headers: dict[str, str], connection: Any) -> Answer:
        """One request and its answer, over the connection if one is given, else over a new one."""
        own = connection or self.connection()
        try:
            own.request(method, path, body, headers)
            response = own.getresponse()
            return Answer(response.status, {k.lower(): v for k, v in response.getheaders()}, response.read())
        finally:
            if connection is None:
                own.close()

    def get(self, path: str, **headers: str) -> Answer:
        return self.ask("GET", path, headers=headers)

    def send(self, path: str, *images: bytes, connection: http.client.HTTPConnection | None = None) -> Answer:
        """The images as a form."""
        body, kind = form(*images)
        return self.ask("POST", path, body, {"Content-Type": kind}, connection)

    def send_json(self, path: str, value: Any) -> Answer:
        return self.ask("POST", path, json.dumps(value).encode(), {"Content-Type": "application/json"})

    def metric(self, name: str) -> float:
        """The sum over its labels."""
        lines = self.get("/metrics").body.decode().splitlines()
        return sum(float(line.rpartition(" ")[2]) for line in lines if re.match(rf"{name}[ {{]", line))


class Server(Client):
    """`vitrail serve ARGUMENTS` in a process of its own, on a port that the system chooses. It takes seconds to start:
    for tests of the process itself (signals, memory, what it prints), and one for most others."""

    def __init__(self, *arguments: str | Path) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "vitrail", "serve", *map(str, arguments), "--port", "0"],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"},
        )
        assert self.process.stdout is not None and self.process.stderr is not None
        self.said: list[str] = []  # on standard error
        threading.Thread(target=self._listen, daemon=True).start()
        self.line = self.process.stdout.readline().rstrip("\n")
        match = re.search(r"http://\S+", self.line)
        assert match, f"no address: {self.line!r} {self.said}"
        self.address = match[0]
        parts = urlsplit(self.address)
        assert parts.hostname is not None and parts.port is not None
        self.host, self.port = parts.hostname, parts.port

    def _listen(self) -> None:
        assert self.process.stderr is not None
        self.said.extend(self.process.stderr)

    def stop(self) -> int:
        """The exit code after SIGTERM."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        return self.process.wait(SECONDS)

    def memory(self) -> int:
        """Bytes that the process holds."""
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        return int(re.findall(r"VmRSS:\s+(\d+) kB", status)[0]) * 1024


class ThreadServer(Client):
    """The same server behind a real socket, in a thread of this process: it starts at once."""

    host = "127.0.0.1"

    def __init__(
        self,
        model: Checkpoint | Path | str,
        access: AccessPolicy | None = None,
        samples: Path | None = None,
        index: Path | None = None,
        **limits: float,
    ) -> None:
        checkpoint = model if isinstance(model, Checkpoint) else open_model(model, untrained=True)
        self.runner, self.app = create(checkpoint, access, samples, index, **limits)
        self._listener = bind_socket(self.host, 0)
        self.port = self._listener.getsockname()[1]
        self.address = f"http://{self.host}:{self.port}/"
        started = threading.Event()

        def on_startup() -> None:
            with contextlib.redirect_stdout(io.StringIO()) as printed:
                print_address(self._listener, self.runner.served.name, self.app.access.token)
            self.line = printed.getvalue().rstrip("\n")
            started.set()

        self._server = create_server(self.app, on_startup)
        self._thread = threading.Thread(target=asyncio.run, args=(self._serve(),), daemon=True)
        self._thread.start()
        assert started.wait(SECONDS)

    async def _serve(self) -> None:
        await self._server.serve(sockets=[self._listener])

    def stop(self) -> int:
        """0 once it is gone."""
        self.app.state.draining = True  # as SIGTERM does
        self._thread.join(SECONDS)
        self.runner.close()
        self._listener.close()
        return int(self._thread.is_alive())


class AppClient(Client):
    """The app without a socket: requests go straight into its ASGI function, in an event loop in another thread."""

    loop: asyncio.AbstractEventLoop | None = None  # one for all

    def __init__(self, model: Checkpoint | Engine, **limits: float) -> None:
        self.runner, self.app = create(model, **limits)
        if AppClient.loop is None:
            AppClient.loop = asyncio.new_event_loop()
            threading.Thread(target=AppClient.loop.run_forever, daemon=True).start()

    def exchange(self, method: str, path: str, body: bytes | None, headers: dict[str, str], connection: Any) -> Answer:
        parts = urlsplit(path)
        length = {"content-length": str(len(body))} if body else {}
        names = {"host": "localhost", **length, **{name.lower(): value for name, value in headers.items()}}
        scope = {
            "type": "http",
            "method": method,
            "path": unquote(parts.path),
            "query_string": parts.query.encode(),
            "headers": [(name.encode(), value.encode()) for name, value in names.items()],
        }
        assert AppClient.loop is not None
        return asyncio.run_coroutine_threadsafe(self._call(scope, body or b""), AppClient.loop).result(SECONDS)

    async def _call(self, scope: dict[str, Any], body: bytes) -> Answer:
        messages: list[Any] = []
        received = [{"type": "http.request", "body": body, "more_body": False}]

        async def receive() -> dict[str, Any]:
            if received:
                return received.pop()
            await asyncio.Event().wait()  # this client never hangs up
            raise AssertionError

        async def send(message: dict[str, Any]) -> None:
            messages.append(message)

        await self.app(scope, receive, send)
        headers = {name.decode(): value.decode() for name, value in messages[0]["headers"]}
        return Answer(messages[0]["status"], headers, b"".join(message["body"] for message in messages[1:]))

    def close(self) -> None:
        self.runner.close()


def create(
    model: Checkpoint | Engine,
    access: AccessPolicy | None = None,
    samples: Path | None = None,
    index: Path | None = None,
    **limits: float,
) -> tuple[JobRunner, SecurityMiddleware]:
    served = ServedModel(model, "model.safetensors", limits_from_options(**limits), device="cpu")
    runner = JobRunner(served, served.limits)
    files = read_samples("", samples) if samples is not None else []
    found_in = None if index is None else ServedIndex(index, served.engine)
    return runner, create_app(runner, access or AccessPolicy(), files, found_in)


def form(*images: bytes, name: str = "image", filename: str = "photo.jpg") -> tuple[bytes, str]:
    """A multipart body, and its content type."""
    mark = "edge-of-a-part"
    head = f'--{mark}\r\nContent-Disposition: form-data; name="{name}"; filename="{filename}"\r\n\r\n'.encode()
    body = b"".join(head + image + b"\r\n" for image in images) + f"--{mark}--\r\n".encode()
    return body, f"multipart/form-data; boundary={mark}"


def picture(seed: int = 0, size: tuple[int, int] = (48, 40), form: str = "PNG", **options: Any) -> bytes:
    """Noise with a colour of its own: no two seeds look alike."""
    generator = np.random.default_rng(seed)
    base = generator.integers(0, 200, (1, 1, 3))
    pixels = (base + generator.integers(0, 56, (size[1], size[0], 3))).astype(np.uint8)
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, form, **options)
    return buffer.getvalue()


def unpacked(body: bytes) -> tuple[dict[str, Any], dict[str, Any]]:
    """The header and the parts of a binary answer, read as docs/serve.md tells."""
    (length,) = struct.unpack_from("<I", body)
    header = json.loads(body[4 : 4 + length])
    parts = {}
    for part in header["parts"]:
        start = 4 + length + part["offset"]
        data = body[start : start + part["bytes"]]
        assert len(data) == part["bytes"] and part["offset"] % 4 == 0
        parts[part["name"]] = (
            data if part["dtype"] == "jpeg" else np.frombuffer(data, part["dtype"]).reshape(part["shape"])
        )
    return header, parts


def hold_pool(server: ThreadServer, monkeypatch: Any, seconds: float) -> None:
    """From now on no thread of its pool is free, and it takes so many seconds for an answer at most."""

    async def never(function: Callable[[], Any]) -> Any:
        await asyncio.Event().wait()

    monkeypatch.setattr(server.runner.pool, "run", never)
    monkeypatch.setattr(server.runner, "limits", replace(server.runner.limits, seconds=seconds))


def until(condition: Any) -> None:
    """Wait for it, with no promise of how long that takes."""
    end = time.monotonic() + SECONDS
    while not condition():
        assert time.monotonic() < end, "it never came to pass"
        time.sleep(0.02)


def async_test(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """The test in an event loop; in a thread, since the browser of other tests keeps an event loop in this one."""

    @functools.wraps(test)
    def run(**fixtures: Any) -> None:
        with ThreadPoolExecutor(1) as pool:
            pool.submit(asyncio.run, test(**fixtures)).result()

    return run
