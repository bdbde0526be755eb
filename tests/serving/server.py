"""A real `vitrail serve` in a process of its own, and the few ways of asking it that the tests need."""

from __future__ import annotations

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
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import numpy as np
from PIL import Image

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
        told = self.json
        assert list(told) == ["error"], told
        return told["error"]


class Server:
    """`vitrail serve ARGUMENTS` on a port that the system chooses."""

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
        found = re.search(r"http://\S+", self.line)
        assert found, f"no address: {self.line!r} {self.said}"
        self.address = found[0]
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
        own = connection or self.connection()
        try:
            own.request(method, path, body, headers or {})
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

    def memory(self) -> int:
        """Bytes that the process holds."""
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        return int(re.findall(r"VmRSS:\s+(\d+) kB", status)[0]) * 1024


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


def until(condition: Any) -> None:
    """Wait for it, with no promise of how long that takes."""
    end = time.monotonic() + SECONDS
    while not condition():
        assert time.monotonic() < end, "it never came to pass"
        time.sleep(0.02)
