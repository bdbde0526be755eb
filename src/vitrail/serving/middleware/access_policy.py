"""Who may use the server: checks of the Host, Origin and Authorization headers."""

from __future__ import annotations

import hmac
import ipaddress
from collections.abc import Mapping
from dataclasses import dataclass

from vitrail.serving.http_errors import HttpError

# These say nothing of the model. /docs and /openapi.json do: its name, task, labels and sizes.
PUBLIC_PATHS = ("/", "/docs.css", "/healthz", "/readyz", "/favicon.ico")


@dataclass(frozen=True)
class AccessPolicy:
    """token: required as `Authorization: Bearer TOKEN`. hosts: allowed Host names besides localhost and IP addresses.
    origins: web pages of other origins that may use the API; '*' allows all."""

    token: str | None = None
    hosts: frozenset[str] = frozenset()
    origins: frozenset[str] = frozenset()

    def check_host(self, headers: Mapping[bytes, bytes]) -> None:
        """Against DNS rebinding: another site could let its own name point here and then read all answers. An IP
        address or localhost is no such name."""
        host = _host_name(headers.get(b"host", b"").decode("latin-1"))
        if host != "localhost" and host not in self.hosts and not _is_ip_address(host):
            raise HttpError(
                403, "the server does not answer to this name: start it with --allow-host NAME", reason="host"
            )

    def check_origin(self, headers: Mapping[bytes, bytes]) -> str | None:
        """The allowed origin of a page elsewhere; None for our own page and for programs. Other pages get 403: a
        browser would hide the answer from them, but only after the work was done."""
        origin = headers.get(b"origin", b"").decode("latin-1")
        if not origin or origin.partition("://")[2] == headers.get(b"host", b"").decode("latin-1"):
            return None
        if origin in self.origins or "*" in self.origins:
            return origin
        raise HttpError(
            403, "pages of another origin may not ask: start the server with --allow-origin", reason="origin"
        )

    def check_token(self, path: str, headers: Mapping[bytes, bytes]) -> None:
        if self.token is None or path in PUBLIC_PATHS or path.startswith("/web/"):
            return
        scheme, _, token = headers.get(b"authorization", b"").partition(b" ")
        # compare_digest takes the same time however much of the token is right
        if scheme.lower() != b"bearer" or not hmac.compare_digest(token.strip(), self.token.encode()):
            challenge = {"www-authenticate": "Bearer"}
            raise HttpError(
                401, "a token is needed: send Authorization: Bearer TOKEN", reason="token", headers=challenge
            )


def _host_name(header: str) -> str:
    """The host without its port: 'localhost:8000' -> 'localhost', '[::1]:8000' -> '::1'."""
    if header.startswith("["):
        return header[1:].partition("]")[0].lower()
    return header.partition(":")[0].lower().rstrip(".")


def _is_ip_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True
