"""uvicorn's HTTP/1.1 protocol with limits that it lacks: of the time for request headers and for clients that do not
read, and of the number of pieces that a body comes in."""

from __future__ import annotations

import asyncio
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from vitrail.serving.http_errors import json_bytes
from vitrail.serving.limits import Limits

_ERROR = json_bytes({"error": "there are too many connections: try again in a moment"})
TOO_MANY_CONNECTIONS = (
    b"HTTP/1.1 503 Service Unavailable\r\ncontent-type: application/json\r\nretry-after: 1\r\nconnection: close\r\n"
    b"content-length: %d\r\n\r\n%s" % (len(_ERROR), _ERROR)
)
_INVALID = json_bytes({"error": "this is no valid HTTP request: the connection is closed"})

MAX_HEADER_BYTES = 64 * 1024  # as uvicorn's own
FREE_PIECES = 1000  # of a body, of any size
MIN_PIECE = 64  # bytes of a piece on average, when there are more


class PieceLimit(h11.Connection):
    """A chunk of one byte costs the event loop as much as one of a thousand: a body of such chunks is refused."""

    _pieces = _bytes = 0

    def next_event(self) -> Any:
        event = super().next_event()
        if isinstance(event, h11.Request):
            self._pieces = self._bytes = 0
        elif isinstance(event, h11.Data):
            self._pieces += 1
            self._bytes += len(event.data)
            if self._pieces > FREE_PIECES and self._bytes < MIN_PIECE * self._pieces:
                raise h11.RemoteProtocolError("the body comes in too many small pieces")
        return event


class TimeoutProtocol(H11Protocol):
    """One connection. `protocol_with_limits` sets `limits`."""

    limits = Limits()

    def __init__(self, *positional: Any, **named: Any) -> None:
        super().__init__(*positional, **named)
        self.conn = PieceLimit(h11.SERVER, MAX_HEADER_BYTES)
        self._header_timer: asyncio.TimerHandle | None = None
        self._unread_bytes = -1

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if len(self.connections) > self.limits.connections:
            transport.write(TOO_MANY_CONNECTIONS)
            transport.close()
            return
        self._start_header_timer()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_header_timer()
        super().connection_lost(exc)

    def handle_events(self) -> None:
        super().handle_events()
        waits_for_headers = self.conn.their_state is h11.IDLE and not self.transport.is_closing()
        if not waits_for_headers:
            self._stop_header_timer()
        elif self._header_timer is None and self.conn.trailing_data[0]:  # a part of them has arrived
            self._start_header_timer()

    def send_400_response(self, msg: str) -> None:
        """uvicorn's own is plain text; every error of ours is JSON."""
        head = [("content-type", "application/json"), ("connection", "close"), ("content-length", str(len(_INVALID)))]
        response = h11.Response(status_code=400, headers=head, reason=b"Bad Request")
        try:
            for event in (response, h11.Data(data=_INVALID), h11.EndOfMessage()):
                self.transport.write(self.conn.send(event) or b"")
            self.transport.close()
        except h11.LocalProtocolError:  # the response has begun already
            self.transport.abort()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._unread_bytes = -1
        self._watch_reader()

    def _watch_reader(self) -> None:
        """Drop a client that has read nothing of its response since the last check."""
        unread = self.transport.get_write_buffer_size()
        if unread and unread == self._unread_bytes:
            self.transport.abort()
        elif unread:
            self._unread_bytes = unread
            self.loop.call_later(self.limits.patience, self._watch_reader)

    def _start_header_timer(self) -> None:
        self._header_timer = self.loop.call_later(self.limits.patience, self._drop_connection)

    def _stop_header_timer(self) -> None:
        if self._header_timer is not None:
            self._header_timer.cancel()
            self._header_timer = None

    def _drop_connection(self) -> None:
        self._header_timer = None
        if not self.transport.is_closing():
            self.transport.abort()


def protocol_with_limits(limits: Limits) -> type[TimeoutProtocol]:
    return type("LimitedProtocol", (TimeoutProtocol,), {"limits": limits})
