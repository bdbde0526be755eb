"""A uvicorn server that drains: on SIGTERM it finishes the requests in progress, refuses new ones, and exits with 0."""

from __future__ import annotations

import logging
import socket
from collections.abc import Callable
from types import FrameType

import uvicorn

from vitrail.serving.http_server.timeout_protocol import protocol_with_limits
from vitrail.serving.middleware.security import SecurityMiddleware, ServerState

KEEP_ALIVE = 15  # seconds that an idle connection is kept


class DrainingServer(uvicorn.Server):
    """The first SIGTERM or SIGINT starts to drain; the second stops at once."""

    def __init__(self, config: uvicorn.Config, state: ServerState, on_startup: Callable[[], None]) -> None:
        super().__init__(config)
        self.state, self.on_startup = state, on_startup

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.on_startup()

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        if self.state.draining:
            self.should_exit = self.force_exit = True
        self.state.draining = True  # uvicorn's own handler would raise the signal again at the end; we exit with 0

    async def on_tick(self, counter: int) -> bool:
        if self.state.draining and self.state.active_requests == 0:
            self.should_exit = True
        return await super().on_tick(counter)


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
        backlog=256,
    )
    return DrainingServer(config, app.state, on_startup)
