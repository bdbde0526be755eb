"""The door: who may come in, what every answer carries, and how a refusal looks. Pure ASGI, around all else."""

from __future__ import annotations

import hmac
import ipaddress
import sys
import time
import traceback
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from vitrail.errors import VitrailError
from vitrail.serving.bodies import Body, Message
from vitrail.serving.limits import Limits, Places
from vitrail.serving.metrics import Metrics
from vitrail.serving.refusals import Refusal, busy

Scope: TypeAlias = dict[str, Any]
Send: TypeAlias = Callable[[Message], Awaitable[None]]
App: TypeAlias = Callable[[Any, Any, Any], Awaitable[None]]

# Nothing but the page's own files runs or loads; pictures may also be made by the page itself.
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data: blob:; connect-src 'self'; "
    "font-src 'self'; worker-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
HEADERS = {
    b"content-security-policy": POLICY.encode(),
    b"x-content-type-options": b"nosniff",
    b"x-frame-options": b"DENY",
    b"referrer-policy": b"no-referrer",
    b"cross-origin-opener-policy": b"same-origin",
    b"cross-origin-resource-policy": b"same-origin",
    b"cache-control": b"no-store",
}
OPEN = ("/", "/docs", "/docs.css", "/openapi.json", "/healthz", "/readyz", "/favicon.ico")  # nothing of the model
ALWAYS = ("/healthz", "/readyz", "/metrics")  # asked by machines that watch, while the server drains too


@dataclass(frozen=True)
class Access:
    """token: what a request must carry. hosts: names that the server answers to. origins: pages that may ask."""

    token: str | None = None
    hosts: frozenset[str] = frozenset()
    origins: frozenset[str] = frozenset()

    def check_host(self, headers: Mapping[bytes, bytes]) -> None:
        """A page elsewhere can let its own name point here (DNS rebinding), and then read all answers as its own. An
        address is no such name, and neither is localhost."""
        host = _host_of(headers.get(b"host", b"").decode("latin-1"))
        if host != "localhost" and host not in self.hosts and not _is_address(host):
            raise Refusal(403, "the server does not answer to this name: start it with --allow-host NAME", why="host")

    def check_origin(self, headers: Mapping[bytes, bytes]) -> str | None:
        """The foreign page that asks and may; None for our own page, and for programs. All other pages are refused:
        a browser would hide the answer from them, but the work would have been done."""
        origin = headers.get(b"origin", b"").decode("latin-1")
        if not origin or origin.partition("://")[2] == headers.get(b"host", b"").decode("latin-1"):
            return None
        if origin in self.origins or "*" in self.origins:
            return origin
        raise Refusal(403, "pages of another origin may not ask: start the server with --allow-origin", why="origin")

    def check_token(self, path: str, headers: Mapping[bytes, bytes]) -> None:
        if self.token is None or path in OPEN or path.startswith("/web/"):
            return
        kind, _, given = headers.get(b"authorization", b"").partition(b" ")
        # compared in constant time: how long it takes must not tell how much of it was right
        if kind.lower() != b"bearer" or not hmac.compare_digest(given.strip(), self.token.encode()):
            needed = {"www-authenticate": "Bearer"}
            raise Refusal(401, "a token is needed: send Authorization: Bearer TOKEN", why="token", headers=needed)


@dataclass
class Door:
    """Around the routes. `draining`: what is in hand is finished, what comes is refused."""

    app: App
    access: Access
    limits: Limits
    metrics: Metrics
    paths: Callable[[str], str]  # a request's path as the metrics call it, so that nobody can make up new ones
    draining: bool = False
    in_hand: int = 0
    held: Places = field(init=False)

    def __post_init__(self) -> None:
        self.held = Places(self.limits.held, "uploads")

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":  # no websockets here
            return
        headers = dict(scope["headers"])
        visit = Visit(Body(receive, self.limits, headers), send)
        started = time.monotonic()
        self.in_hand += 1
        try:
            await self._answered(scope, headers, visit)
        finally:
            self.in_hand -= 1
            self.metrics.timed(self.paths(scope["path"]), visit.status, time.monotonic() - started)

    async def _answered(self, scope: Scope, headers: dict[bytes, bytes], visit: Visit) -> None:
        try:
            self.access.check_host(headers)
            visit.origin = self.access.check_origin(headers)
            if scope["method"] == "OPTIONS" and visit.origin is not None:
                await visit.allow()
                return
            self.access.check_token(scope["path"], headers)
            if self.draining and scope["path"] not in ALWAYS:
                raise busy("the server is stopping: ask another one", why="stopping")
            with self.held.take(self._weight(visit.body)):
                await self.app(scope, visit.body, visit.send)
        except Refusal as refusal:
            self.metrics.add("vitrail_refused_total", why=refusal.why)
            await visit.refuse(refusal)
        except VitrailError as error:
            await visit.refuse(Refusal(422, " ".join(str(error).split())))
        except Exception:  # ours to mend: told in full to whoever runs the server, and to nobody else
            traceback.print_exc(file=sys.stderr)
            await visit.refuse(Refusal(500, "something went wrong here; the server's own output tells what"))

    def _weight(self, body: Body) -> int:
        """Bytes that this request may come to hold."""
        if body.complete:
            return 0
        return min(self.limits.bytes if body.announced is None else body.announced, self.limits.bytes)


@dataclass
class Visit:
    """One request and its answer."""

    body: Body
    raw: Send
    status: int = 0
    origin: str | None = None

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            message = {**message, "headers": await self._headers(message.get("headers", ()))}
        await self.raw(message)

    async def _headers(self, own: Any) -> list[tuple[bytes, bytes]]:
        given = [(bytes(name).lower(), bytes(value)) for name, value in own]
        names = {name for name, _ in given}
        given += [(name, value) for name, value in HEADERS.items() if name not in names]
        if self.origin is not None:
            given += [(b"access-control-allow-origin", self.origin.encode("latin-1")), (b"vary", b"Origin")]
        if not await self.body.thrown_away():
            given.append((b"connection", b"close"))
        return given

    async def allow(self) -> None:
        """What a browser asks before it lets a foreign page ask."""
        headers = {
            b"access-control-allow-methods": b"GET, POST",
            b"access-control-allow-headers": b"Authorization, Content-Type",
            b"access-control-max-age": b"600",
        }
        await self.send({"type": "http.response.start", "status": 204, "headers": list(headers.items())})
        await self.send({"type": "http.response.body", "body": b""})

    async def refuse(self, refusal: Refusal) -> None:
        if self.status:  # too late: the answer has begun
            raise refusal
        body = refusal.body()
        headers = {"content-type": "application/json", "content-length": str(len(body)), **refusal.headers}
        raw = [(name.encode(), value.encode()) for name, value in headers.items()]
        await self.send({"type": "http.response.start", "status": refusal.status, "headers": raw})
        await self.send({"type": "http.response.body", "body": body})


def _host_of(header: str) -> str:
    """The name without its port: 'localhost:8000', '[::1]:8000'."""
    if header.startswith("["):
        return header[1:].partition("]")[0].lower()
    return header.partition(":")[0].lower().rstrip(".")


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True
