"""A request's body with limits: 413 if it is too large, 408 if it comes too slowly, 503 if there are too many."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any, TypeAlias

from vitrail.serving.http_errors import HttpError
from vitrail.serving.limits import Capacity, Limits

Message: TypeAlias = MutableMapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[Message]]

MAX_DRAINED_BYTES = 1_000_000  # of a refused body that are read and dropped, so that the connection can be kept


class RequestBody:
    """Wraps the `receive` of an ASGI request. What has arrived counts in `uploads` until `release`; what a client only
    announces does not, for else a few that send nothing would keep all others away."""

    def __init__(self, receive: Receive, limits: Limits, headers: dict[bytes, bytes], uploads: Capacity) -> None:
        self.receive, self.limits, self.uploads = receive, limits, uploads
        self.received = self.held = 0
        self.deadline = time.monotonic() + limits.patience  # every byte moves it, but never beyond `patience` from now
        length = headers.get(b"content-length", b"")
        self.content_length = int(length) if length.isdigit() else None
        self.complete = self.content_length == 0 or (
            self.content_length is None and b"transfer-encoding" not in headers
        )
        # one proxy may go by the first and another by the second, and so see different requests
        self.ambiguous = b"content-length" in headers and b"transfer-encoding" in headers
        self.disconnected = self.timed_out = False

    async def __call__(self) -> Message:
        if self.complete or self.disconnected:  # there is no more body: this returns when the client disconnects
            return await self.receive()
        self._check_size(self.content_length or 0)
        try:
            async with asyncio.timeout(max(0.0, self.deadline - time.monotonic())):
                message = await self.receive()
        except TimeoutError:
            self.timed_out = True
            raise HttpError(408, "the request's body came too slowly: send it again", reason="slow") from None
        size = self._count(message)
        self._check_size(self.received)
        self.uploads.take(size)
        self.held += size
        now = time.monotonic()
        self.deadline = min(now + self.limits.patience, self.deadline + size / self.limits.bytes_per_second)
        return message

    async def drain(self) -> bool:
        """Read and drop the rest of the body if that takes but a moment. False: the connection cannot be kept."""
        if self.complete:
            return True
        if self.ambiguous or self.timed_out or (self.content_length or 0) > self.received + MAX_DRAINED_BYTES:
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

    def release(self) -> None:
        """The request is answered, and its body is no longer in memory."""
        self.uploads.give_back(self.held)
        self.held = 0

    def _check_size(self, size: int) -> None:
        if size > self.limits.bytes:
            raise HttpError(413, f"a request has at most {self.limits.bytes:,} bytes: send fewer or smaller images")

    def _count(self, message: Message) -> int:
        if message["type"] == "http.disconnect":
            self.disconnected = True
            return 0
        size = len(message.get("body", b""))
        self.received += size
        self.complete = not message.get("more_body", False)
        return size
