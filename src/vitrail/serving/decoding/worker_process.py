"""The server's side of one decoding process: starts it, gives it an image at a time, and kills it."""

from __future__ import annotations

import contextlib
import json
import mmap
import os
import subprocess
import sys
from dataclasses import dataclass
from typing import Any

import numpy as np

from vitrail.images.unreadable import UnreadableImage
from vitrail.serving.decoding.picture_reader import Picture, PictureReader
from vitrail.serving.decoding.shared_buffer import create_buffer, give_back
from vitrail.tasks.letterbox import Letterbox


class WorkerDied(Exception):
    """The process ended while it decoded an image: it was killed, or a decoder broke it."""


@dataclass(frozen=True)
class WorkerSettings:
    reader: PictureReader
    max_bytes: int  # of an image file
    memory: int  # bytes that an image may take
    formats: tuple[str, ...]


class WorkerProcess:
    """Blocking: its methods are called from a thread, except `kill`."""

    def __init__(self, settings: WorkerSettings) -> None:
        size = max(settings.max_bytes, settings.reader.max_bytes)
        self._buffer, handle = create_buffer(size)
        self._process, self._dead = _start(handle), False
        if sys.platform != "win32":
            os.close(int(handle))
        self._send(
            {
                "reader": settings.reader.to_dict(),
                "buffer": handle,
                "size": size,
                "memory": settings.memory,
                "formats": settings.formats,
            }
        )
        self._receive()  # it is ready

    def decode(self, data: bytes, name: str) -> Picture:
        """The picture, or UnreadableImage; WorkerDied where there is no answer."""
        self._buffer[: len(data)] = data
        self._send({"length": len(data), "name": name})
        answer = self._receive()
        try:
            if "error" in answer:
                kind, why = answer["error"]
                raise UnreadableImage(name, kind, why)
            return _picture(answer, self._buffer)
        finally:
            give_back(self._buffer, max(len(data), sum(np.prod(shape) for shape in answer.get("shapes", ()))))

    @property
    def alive(self) -> bool:
        return not self._dead and self._process.poll() is None

    def kill(self) -> None:
        """At once, from any thread; a `decode` that waits raises WorkerDied."""
        self._dead = True  # the system may take a moment
        self._process.kill()

    def close(self) -> None:
        self.kill()
        self._process.wait()
        assert self._process.stdin is not None and self._process.stdout is not None
        with contextlib.suppress(OSError):  # there may be something left to write
            self._process.stdin.close()
        self._process.stdout.close()
        self._buffer.close()

    def _send(self, value: dict[str, Any]) -> None:
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(value).encode() + b"\n")
            self._process.stdin.flush()
        except OSError:
            self._dead = True
            raise WorkerDied from None

    def _receive(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line.endswith(b"\n"):
            self._dead = True
            raise WorkerDied
        answer: dict[str, Any] = json.loads(line)
        return answer


# One thread, one heap: a process takes what its image needs. glibc gives memory back to the system after every image,
# and the next one begins with 200 page faults, a seventh of the time of a small JPEG: so it keeps some.
ALLOCATION = {
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "MALLOC_ARENA_MAX": "1",
    "MALLOC_TRIM_THRESHOLD_": "33554432",
    "MALLOC_MMAP_THRESHOLD_": "8388608",
}


def _start(handle: str) -> subprocess.Popen[bytes]:
    """-P: no module of the current folder is imported."""
    path = os.pathsep.join(os.path.abspath(entry) for entry in sys.path)
    return subprocess.Popen(
        [sys.executable, "-P", "-m", "vitrail.serving.decoding.decode_worker"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, **ALLOCATION, "PYTHONPATH": path},
        pass_fds=() if sys.platform == "win32" else (int(handle),),
        start_new_session=True,  # Ctrl-C in the terminal is for the server
    )


def _picture(answer: dict[str, Any], buffer: mmap.mmap) -> Picture:
    arrays, offset = [], 0
    for shape in answer["shapes"]:
        count = int(np.prod(shape))
        arrays.append(np.frombuffer(buffer, np.uint8, count, offset).reshape(shape).copy())
        offset += count
    letterbox = None
    if answer["letterbox"] is not None:
        own, inside, size = answer["letterbox"]
        letterbox = Letterbox(tuple(own), tuple(inside), tuple(size))
    height, width = answer["size"]
    return Picture(arrays[0], (height, width), letterbox, arrays[1] if len(arrays) > 1 else None)
