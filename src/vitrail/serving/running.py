"""`vitrail.serve`: from a model's name to a server that runs until it is told to stop."""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import secrets
import socket
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

from vitrail.errors import VitrailError

if TYPE_CHECKING:
    import uvicorn

    from vitrail.serving.limits import Limits
    from vitrail.serving.security import Door

AUTO = "auto"  # as a token: make one up
KEEP_ALIVE = 15  # seconds


def serve(
    model: str | Path,
    *,
    host: str = "127.0.0.1",
    port: int = 8000,
    samples: str | Path | None = None,
    token: str | None = None,
    allow_host: Sequence[str] = (),
    allow_origin: Sequence[str] = (),
    batch_size: int | None = None,
    workers: int = 2,
    device: str = "auto",
    max_bytes: int | None = None,
    max_pixels: int | None = None,
    max_images: int | None = None,
    queue: int | None = None,
    patience: float | None = None,
    seconds: float | None = None,
) -> None:
    """Serve a model until SIGTERM or Ctrl-C; then finish what is in hand.

    model: a file, a folder, a hub id, or a preset (untrained, to look at the network). port 0: the system chooses one.
    samples: a folder of pictures for the page; default: `samples` beside the model file. token: what requests must
    carry; 'auto' makes one up. allow_host: names besides localhost and addresses. allow_origin: pages of other origins
    that may ask. queue: images in hand, beyond which requests are refused. patience: seconds for a silent client.
    seconds: for an answer. Other limits: see `Limits`.
    """
    check_installed()
    limits = limits_of(
        bytes=max_bytes, pixels=max_pixels, images=max_images, waiting=queue, patience=patience, seconds=seconds
    )
    chosen = secrets.token_urlsafe(18) if token == AUTO else token
    check_access(chosen, allow_origin)
    with listening(host, port) as listener:  # before the model is loaded: a port in use is told at once
        asyncio.run(
            _serve(
                model,
                listener,
                limits,
                samples=samples,
                token=chosen,
                hosts=[host, *allow_host],
                origins=allow_origin,
                batch_size=batch_size,
                workers=workers,
                device=device,
            )
        )


async def _serve(
    model: str | Path,
    listener: socket.socket,
    limits: Limits,
    *,
    samples: str | Path | None,
    token: str | None,
    hosts: Sequence[str],
    origins: Sequence[str],
    batch_size: int | None,
    workers: int,
    device: str,
) -> None:
    from vitrail.explanation.explain import opened
    from vitrail.serving.answers import Served
    from vitrail.serving.app import Api
    from vitrail.serving.security import Access, Door
    from vitrail.serving.still import samples_of, web_files
    from vitrail.serving.working import Workshop

    pictures = samples_of(model, samples)
    served = Served(opened(model), _name(model), limits, device=device, batch_size=batch_size)
    work = Workshop(served, limits, workers)
    api = Api(work, web_files(), pictures)
    try:
        await work.warm_up()
        access = Access(token, frozenset(name.lower() for name in hosts), frozenset(origins))
        door = Door(api, access, limits, api.metrics, api.path)
        api.ready, api.in_hand = lambda: not door.draining, lambda: door.in_hand
        server = _server(door, limits, lambda: _announce(listener, served.name, token))
        await server.serve(sockets=[listener])
    finally:
        work.close()


def _server(door: Door, limits: Limits, started: Callable[[], None]) -> uvicorn.Server:
    import uvicorn

    from vitrail.serving.protocol import guarded_by

    class Draining(uvicorn.Server):
        """Told to stop, it refuses what comes (503) until what is in hand is done. Told twice, it stops at once."""

        async def startup(self, sockets: list[socket.socket] | None = None) -> None:
            await super().startup(sockets)
            started()

        def handle_exit(self, sig: int, frame: FrameType | None) -> None:
            if door.draining:
                self.should_exit = self.force_exit = True
            door.draining = True  # the signal is not raised again at the end, as uvicorn's own handler has it: exit 0

        async def on_tick(self, counter: int) -> bool:
            if door.draining and door.in_hand == 0:
                self.should_exit = True
            return await super().on_tick(counter)

    for library in ("uvicorn", "python_multipart"):  # whoever sends rubbish could fill a disk with what they say of it
        logging.getLogger(library).setLevel(logging.CRITICAL)
    config = uvicorn.Config(
        door,
        http=guarded_by(limits),
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
    return Draining(config)


def check_installed() -> None:
    try:
        import python_multipart  # noqa: F401
        import starlette  # noqa: F401
        import uvicorn  # noqa: F401
    except ImportError as error:
        raise VitrailError(f'serving needs one more package ({error.name}): pip install "vitrail[serve]"') from None


def check_access(token: str | None, origins: Sequence[str]) -> None:
    if token is not None and (not token.isascii() or not token.isprintable() or " " in token or len(token) < 8):
        raise VitrailError("a token has 8 or more plain characters and no spaces; --token auto makes one up")
    for origin in origins:
        scheme, found, rest = origin.partition("://")
        if origin != "*" and (scheme not in ("http", "https") or not found or not rest or "/" in rest):
            raise VitrailError(f"an origin looks like https://example.org, or is *, not {origin!r}")


def limits_of(**asked: Any) -> Limits:
    """The usual limits, but for those that were asked for."""
    from vitrail.serving.limits import Limits

    limits = Limits(**{name: value for name, value in asked.items() if value is not None})
    return replace(limits, images=min(limits.images, limits.waiting))  # more than all places could never be taken


def listening(host: str, port: int) -> socket.socket:
    """A bound socket, or one sentence that says why there is none."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listener = socket.socket(family, kind, protocol)
    except OSError as error:
        raise VitrailError(f"cannot listen on {host}: {error.strerror or error}") from None
    try:
        if sys.platform != "win32":  # there it would let two servers share a port
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
    except (OSError, OverflowError) as error:
        listener.close()
        why = getattr(error, "strerror", None) or error
        raise VitrailError(f"cannot listen on {host}, port {port}: {why}; --port 0 takes any free one") from None
    return listener


def _announce(listener: socket.socket, name: str, token: str | None) -> None:
    host, port = listener.getsockname()[:2]
    shown = f"[{host}]" if ":" in host else host
    secret = f"#token={token}" if token is not None else ""  # what is behind the # stays in the browser
    print(f"{name} is served at http://{shown}:{port}/{secret}", flush=True)
    if token is None and not ipaddress.ip_address(host).is_loopback:
        print("vitrail: anyone who reaches this address can use it: --token auto asks for a token", file=sys.stderr)


def _name(model: str | Path) -> str:
    """What answers call the model: of a path its last part, for the rest is nobody's business."""
    from vitrail.data.names import shown

    path = Path(model)
    return shown(path.name if path.exists() and path.name else str(model))
