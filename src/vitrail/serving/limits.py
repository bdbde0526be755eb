"""Limits of the server: what one request may cost, and how much work it accepts at a time."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from vitrail.serving.decoding.served_formats import FORMATS
from vitrail.serving.http_errors import HttpError, service_unavailable


@dataclass(frozen=True)
class Limits:
    bytes: int = 32_000_000  # of a request's body
    pixels: int = 50_000_000  # of an image, by its header and after the model's resize
    images: int = 32  # per request
    queue: int = 128  # images accepted and not yet answered, of all requests
    decode_bytes: int = 1_500_000_000  # of memory for decoding an image: some copies of 50 million pixels
    decode_seconds: float = 5.0  # for decoding an image
    formats: tuple[str, ...] = FORMATS
    explanations: int = 4  # explanations and walks accepted and not yet answered; each costs as much as many images
    upload_bytes: int = 512_000_000  # of all request bodies that are being read or answered
    patience: float = 10.0  # seconds without a byte from a client
    bytes_per_second: int = 16_000  # that a client sends at least, once it has been sending for `patience` seconds
    seconds: float = 60.0  # for an answer, including the time in the queue
    stop_seconds: float = 30.0  # from SIGTERM to the end; requests that are not answered by then are dropped
    connections: int = 512


class Capacity:
    """A counter with a limit. A request that would exceed it gets 503 at once; it is not put into a queue."""

    def __init__(self, limit: int, what: str) -> None:
        self.limit, self.what, self.used = limit, what, 0

    def check(self, retry_after: float = 1.0) -> None:
        """Refuse early, before a body is read, if there is no room at all."""
        if self.used >= self.limit:
            raise self._exceeded(retry_after)

    @contextmanager
    def reserve(self, amount: int, retry_after: float = 1.0) -> Iterator[None]:
        """Hold this amount. It is released however the work ends, also when the client disconnects."""
        self.take(amount, retry_after)
        try:
            yield
        finally:
            self.give_back(amount)

    def take(self, amount: int, retry_after: float = 1.0) -> None:
        if self.used + amount > self.limit:
            raise self._exceeded(retry_after)
        self.used += amount

    def give_back(self, amount: int) -> None:
        self.used -= amount

    def _exceeded(self, retry_after: float) -> HttpError:
        return service_unavailable(f"the server is busy with {self.what}: try again in a moment", retry_after)
