"""The steps of `vitrail.serve`: options to limits, a socket, and the server that runs until SIGTERM or Ctrl-C."""

from __future__ import annotations

import ipaddress
import socket
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vitrail.errors import VitrailError

if TYPE_CHECKING:
    from vitrail.serving.job_runner import JobRunner
    from vitrail.serving.limits import Limits
    from vitrail.serving.middleware.security import SecurityMiddleware

BACKLOG = 256  # connections that wait to be accepted; also while the model is loaded


async def run_server(app: SecurityMiddleware, runner: JobRunner, listener: socket.socket) -> None:
    """Serve until SIGTERM or Ctrl-C."""
    from vitrail.serving.http_server.draining_server import create_server

    try:
        await runner.warm_up()
        server = create_server(app, lambda: announce(app, runner, listener))
        await server.serve(sockets=[listener])
    finally:
        runner.close()


def check_installed() -> None:
    try:
        import fastapi  # noqa: F401
        import prometheus_client  # noqa: F401
        import python_multipart  # noqa: F401
        import uvicorn  # noqa: F401
    except ImportError as error:
        raise VitrailError(f'serving needs one more package ({error.name}): pip install "vitrail[serve]"') from None


def check_access_options(token: str | None, origins: Sequence[str]) -> None:
    if token is not None and (not token.isascii() or not token.isprintable() or " " in token or len(token) < 8):
        raise VitrailError("a token has 8 or more plain characters and no spaces; --token auto makes one up")
    for origin in origins:
        scheme, separator, rest = origin.partition("://")
        if origin != "*" and (scheme not in ("http", "https") or not separator or not rest or "/" in rest):
            raise VitrailError(f"an origin looks like https://example.org, or is *, not {origin!r}")


def limits_from_options(**options: Any) -> Limits:
    """The default limits, except for the options that are not None."""
    from vitrail.serving.limits import Limits

    limits = Limits(**{name: value for name, value in options.items() if value is not None})
    return replace(limits, images=min(limits.images, limits.queue))  # a request must fit into the queue


def bind_socket(host: str, port: int) -> socket.socket:
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listener = socket.socket(family, kind, protocol)
    except OSError as error:
        raise VitrailError(f"cannot listen on {host}: {error.strerror or error}") from None
    try:
        if sys.platform != "win32":  # on Windows this would let two servers share a port
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(BACKLOG)  # two servers can bind one port: the second is to fail now, not with its model loaded
    except (OSError, OverflowError) as error:
        listener.close()
        reason = getattr(error, "strerror", None) or error
        raise VitrailError(f"cannot listen on {host}, port {port}: {reason}; --port 0 takes any free one") from None
    return listener


def announce(app: SecurityMiddleware, runner: JobRunner, listener: socket.socket) -> None:
    print_address(listener, runner.served.name, app.access.token)
    backend = runner.served.engine.backend
    if (backend.name, backend.precision) != ("torch", "float32"):
        how = "" if backend.name == "torch" else f" by {backend.name}; maps and explanations come from torch"
        print(f"vitrail: answers are computed in {backend.precision}{how}", file=sys.stderr, flush=True)


def print_address(listener: socket.socket, name: str, token: str | None) -> None:
    host, port = listener.getsockname()[:2]
    url_host = f"[{host}]" if ":" in host else host
    fragment = f"#token={token}" if token is not None else ""  # browsers do not send what is behind the #
    print(f"{name} is served at http://{url_host}:{port}/{fragment}", flush=True)
    if token is None and not ipaddress.ip_address(host).is_loopback:
        print("vitrail: anyone who reaches this address can use it: --token auto asks for a token", file=sys.stderr)


def display_name(model: str | Path) -> str:
    """The name in answers: of a path only its last part, so that clients do not learn where it lies."""
    from vitrail.text import shown

    path = Path(model)
    return shown(path.name if path.exists() and path.name else str(model))
