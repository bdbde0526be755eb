"""uvicorn's HTTP/1.1, with an end to waiting: for headers that never come, and for a reader who never reads."""

from __future__ import annotations

import asyncio
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from vitrail.serving.limits import Limits
from vitrail.serving.refusals import as_json

_SENTENCE = as_json({"error": "there are too many connections: try again in a moment"})
FULL = (
    b"HTTP/1.1 503 Service Unavailable\r\ncontent-type: application/json\r\nretry-after: 1\r\nconnection: close\r\n"
    b"content-length: %d\r\n\r\n%s" % (len(_SENTENCE), _SENTENCE)
)


class Guarded(H11Protocol):
    """One connection. `limits` is set by `guarded_by`."""

    limits = Limits()

    def __init__(self, *positional: Any, **named: Any) -> None:
        super().__init__(*positional, **named)
        self._headers_due: asyncio.TimerHandle | None = None
        self._unread = -1

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if len(self.connections) > self.limits.connections:
            transport.write(FULL)
            transport.close()
            return
        self._expect_headers()

    def connection_lost(self, exc: Exception | None) -> None:
        self._headers_came()
        super().connection_lost(exc)

    def handle_events(self) -> None:
        super().handle_events()
        waits_for_headers = self.conn.their_state is h11.IDLE and not self.transport.is_closing()
        if not waits_for_headers:
            self._headers_came()
        elif self._headers_due is None and self.conn.trailing_data[0]:  # some of them are there
            self._expect_headers()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._unread = -1
        self._watch_reader()

    def _watch_reader(self) -> None:
        """An answer waits for its reader as long as some of it is read now and then."""
        unread = self.transport.get_write_buffer_size()
        if unread and unread == self._unread:
            self.transport.abort()
        elif unread:
            self._unread = unread
            self.loop.call_later(self.limits.patience, self._watch_reader)

    def _expect_headers(self) -> None:
        self._headers_due = self.loop.call_later(self.limits.patience, self._give_up)

    def _headers_came(self) -> None:
        if self._headers_due is not None:
            self._headers_due.cancel()
            self._headers_due = None

    def _give_up(self) -> None:
        self._headers_due = None
        if not self.transport.is_closing():
            self.transport.abort()


def guarded_by(limits: Limits) -> type[Guarded]:
    return type("GuardedBy", (Guarded,), {"limits": limits})
