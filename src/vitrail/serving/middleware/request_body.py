"""A request's body with limits: 413 if it is too large, 408 if it comes too slowly."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any, TypeAlias

from vitrail.serving.http_errors import HttpError
from vitrail.serving.limits import Limits

Message: TypeAlias = MutableMapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[Message]]

MIN_BYTES_PER_SECOND = 16_000  # on average, after the first `patience` seconds
MAX_DRAINED_BYTES = 1_000_000  # of a refused body that are read and dropped, so that the connection can be kept


class RequestBody:
    """Wraps the `receive` of an ASGI request."""

    def __init__(self, receive: Receive, limits: Limits, headers: dict[bytes, bytes]) -> None:
        self.receive, self.limits = receive, limits
        self.received, self.started = 0, time.monotonic()
        length = headers.get(b"content-length", b"")
        self.content_length = int(length) if length.isdigit() else None
        self.complete = self.content_length == 0 or (
            self.content_length is None and b"transfer-encoding" not in headers
        )
        self.disconnected = self.timed_out = False

    async def __call__(self) -> Message:
        if self.complete or self.disconnected:  # there is no more body: this returns when the client disconnects
            return await self.receive()
        self._check_size(self.content_length or 0)
        elapsed = time.monotonic() - self.started
        remaining = self.limits.patience + self.received / MIN_BYTES_PER_SECOND - elapsed
        try:
            async with asyncio.timeout(max(0.0, min(remaining, self.limits.patience))):
                message = await self.receive()
        except TimeoutError:
            self.timed_out = True
            raise HttpError(408, "the request's body came too slowly: send it again", reason="slow") from None
        self._count(message)
        self._check_size(self.received)
        return message

    async def drain(self) -> bool:
        """Read and drop the rest of the body if that takes but a moment. False: the connection cannot be kept."""
        if self.complete:
            return True
        if self.timed_out or (self.content_length or 0) > self.received + MAX_DRAINED_BYTES:
            return False
        try:
            async with asyncio.timeout(min(1.0, self.limits.patience)):
                while not self.complete and not self.disconnected:
                    if self.received > self.limits.bytes + MAX_DRAINED_BYTES:
                        break
                    self._count(await self.receive())
        except TimeoutError:
            return False
        return self.complete

    @property
    def reserved_bytes(self) -> int:
        """The most that this body can hold in memory."""
        if self.complete:
            return 0
        return min(self.limits.bytes if self.content_length is None else self.content_length, self.limits.bytes)

    def _check_size(self, size: int) -> None:
        if size > self.limits.bytes:
            raise HttpError(413, f"a request has at most {self.limits.bytes:,} bytes: send fewer or smaller images")

    def _count(self, message: Message) -> None:
        if message["type"] == "http.disconnect":
            self.disconnected = True
        else:
            self.received += len(message.get("body", b""))
            self.complete = not message.get("more_body", False)
