"""A uvicorn server that drains: on SIGTERM it finishes the requests in progress, refuses new ones, and exits with 0.

Requests that are not finished by a deadline are dropped, and it says so: a client that drips a body would never end."""

from __future__ import annotations

import logging
import socket
import sys
import time
from collections.abc import Callable
from types import FrameType

import uvicorn

from vitrail.serving.http_server.timeout_protocol import protocol_with_limits
from vitrail.serving.middleware.security import SecurityMiddleware, ServerState
from vitrail.serving.server import BACKLOG
from vitrail.text import counted

KEEP_ALIVE = 15  # seconds that an idle connection is kept


class DrainingServer(uvicorn.Server):
    """The first SIGTERM or SIGINT starts to drain; the second stops at once."""

    def __init__(
        self, config: uvicorn.Config, state: ServerState, on_startup: Callable[[], None], stop_seconds: float
    ) -> None:
        super().__init__(config)
        self.state, self.on_startup, self.stop_seconds = state, on_startup, stop_seconds
        self._draining_since: float | None = None

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.on_startup()

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        if self.state.draining:
            self.should_exit = self.force_exit = True
        self.state.draining = True  # uvicorn's own handler would raise the signal again at the end; we exit with 0

    async def on_tick(self, counter: int) -> bool:
        if self.state.draining and not self.should_exit:
            if self._draining_since is None:
                self._draining_since = time.monotonic()
            if self.state.active_requests == 0:
                self.should_exit = True
            elif time.monotonic() - self._draining_since > self.stop_seconds:
                self._drop_requests()
        return await super().on_tick(counter)

    def _drop_requests(self) -> None:
        dropped = counted(self.state.active_requests, "request")
        print(
            f"vitrail: dropped {dropped} that did not end within {self.stop_seconds:g} s", file=sys.stderr, flush=True
        )
        for connection in list(self.server_state.connections):
            connection.transport.abort()
        self.should_exit = self.force_exit = True


def create_server(app: SecurityMiddleware, on_startup: Callable[[], None]) -> DrainingServer:
    for library in ("uvicorn", "python_multipart"):  # clients that send garbage could fill a disk with log lines
        logging.getLogger(library).setLevel(logging.CRITICAL)
    config = uvicorn.Config(
        app,
        http=protocol_with_limits(app.limits),
        ws="none",
        loop="asyncio",
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        timeout_keep_alive=KEEP_ALIVE,
        timeout_graceful_shutdown=5,
        backlog=BACKLOG,
    )
    return DrainingServer(config, app.state, on_startup, app.limits.stop_seconds)
