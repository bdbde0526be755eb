"""A count that moves, for people who wait at a terminal; nothing where standard error is no terminal."""

from __future__ import annotations

import sys
import time

_EVERY = 0.2  # seconds


class Counter:
    """Use as a context, and `step` once an image."""

    def __init__(self, total: int | None = None, wanted: bool = True) -> None:
        self.total = total
        self.done = 0
        self.begun = self._shown = time.perf_counter()
        self._stream = sys.stderr if wanted and sys.stderr.isatty() else None

    @property
    def seconds(self) -> float:
        return time.perf_counter() - self.begun

    def step(self) -> None:
        self.done += 1
        now = time.perf_counter()
        if self._stream is not None and now - self._shown > _EVERY:
            self._shown = now
            of = "" if self.total is None else f" of {self.total:,}"
            self._stream.write(f"\r{self.done:,}{of} images, {self.done / (now - self.begun):.1f} a second\x1b[K")
            self._stream.flush()

    def __enter__(self) -> Counter:
        return self

    def __exit__(self, *_: object) -> None:
        if self._stream is not None:
            self._stream.write("\r\x1b[K")
            self._stream.flush()
