"""The outermost ASGI middleware: access checks, limits on uploads, draining, security headers, metrics."""

from __future__ import annotations

import sys
import time
import traceback
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from vitrail.serving.http_errors import HttpError, service_unavailable
from vitrail.serving.limits import Capacity, Limits
from vitrail.serving.middleware.access_policy import AccessPolicy
from vitrail.serving.middleware.request_body import Message, RequestBody
from vitrail.serving.server_metrics import ServerMetrics

Scope: TypeAlias = dict[str, Any]
Send: TypeAlias = Callable[[Message], Awaitable[None]]
ASGIApp: TypeAlias = Callable[[Any, Any, Any], Awaitable[None]]

# Only the page's own files run or load; images may also be made by the page itself.
CONTENT_SECURITY_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data: blob:; connect-src 'self'; "
    "font-src 'self'; worker-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
DEFAULT_HEADERS = {
    b"content-security-policy": CONTENT_SECURITY_POLICY.encode(),
    b"x-content-type-options": b"nosniff",
    b"x-frame-options": b"DENY",
    b"referrer-policy": b"no-referrer",
    b"cross-origin-opener-policy": b"same-origin",
    b"cross-origin-resource-policy": b"same-origin",
    b"cache-control": b"no-store",
}
PREFLIGHT_HEADERS = {
    b"access-control-allow-methods": b"GET, POST",
    b"access-control-allow-headers": b"Authorization, Content-Type",
    b"access-control-max-age": b"600",
}
MONITORING_PATHS = ("/healthz", "/readyz", "/metrics")  # answered while the server drains, too


@dataclass
class ServerState:
    """draining: requests in progress are finished, new ones get 503."""

    draining: bool = False
    active_requests: int = 0


@dataclass
class SecurityMiddleware:
    """Around the FastAPI app, which turns its own errors into responses. This one answers for what it refuses."""

    app: ASGIApp
    access: AccessPolicy
    limits: Limits
    metrics: ServerMetrics
    path_label: Callable[[str], str]  # a request's path as the metrics name it: clients cannot make up new labels
    state: ServerState = field(default_factory=ServerState)
    uploads: Capacity = field(init=False)

    def __post_init__(self) -> None:
        self.uploads = Capacity(self.limits.upload_bytes, "uploads")

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":  # no websockets
            return
        headers = dict(scope["headers"])
        body = RequestBody(receive, self.limits, headers, self.uploads)
        responder = Responder(body, send)
        started = time.monotonic()
        self.state.active_requests += 1
        try:
            await self._respond(scope, headers, body, responder)
        finally:
            body.release()
            self.state.active_requests -= 1
            elapsed = time.monotonic() - started
            self.metrics.count_request(self.path_label(scope["path"]), responder.status, elapsed)

    async def _respond(
        self, scope: Scope, headers: dict[bytes, bytes], body: RequestBody, responder: Responder
    ) -> None:
        try:
            if body.ambiguous:
                raise HttpError(400, "a request has Content-Length or Transfer-Encoding, not both: send one of them")
            self.access.check_host(headers)
            responder.origin = self.access.check_origin(headers)
            if scope["method"] == "OPTIONS" and responder.origin is not None:
                await responder.send_empty(204, PREFLIGHT_HEADERS)
                return
            self.access.check_token(scope["path"], headers)
            if self.state.draining and scope["path"] not in MONITORING_PATHS:
                raise service_unavailable("the server is stopping: ask another one", reason="stopping")
            await self.app(scope, body, responder.send)
        except HttpError as error:
            self.metrics.count_refusal(error.reason)
            await error.response()(scope, body, responder.send)
        except Exception:  # a bug: the details are only for whoever runs the server; the app has sent a 500 already
            traceback.print_exc(file=sys.stderr)


@dataclass
class Responder:
    """The `send` of a request: adds headers, and closes the connection if a body is left on it."""

    body: RequestBody
    raw_send: Send
    status: int = 0
    origin: str | None = None

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            message = {**message, "headers": await self._all_headers(message.get("headers", ()))}
        await self.raw_send(message)

    async def send_empty(self, status: int, headers: dict[bytes, bytes]) -> None:
        await self.send({"type": "http.response.start", "status": status, "headers": list(headers.items())})
        await self.send({"type": "http.response.body", "body": b""})

    async def _all_headers(self, own: Any) -> list[tuple[bytes, bytes]]:
        headers = [(bytes(name).lower(), bytes(value)) for name, value in own]
        names = {name for name, _ in headers}
        headers += [(name, value) for name, value in DEFAULT_HEADERS.items() if name not in names]
        if self.origin is not None:
            headers += [(b"access-control-allow-origin", self.origin.encode("latin-1")), (b"vary", b"Origin")]
        if not await self.body.drain():
            headers.append((b"connection", b"close"))
        return headers
