"""The error responses of the API: a status code and `{"error": "one sentence"}`."""

from __future__ import annotations

import json
import math
from typing import Any

from starlette.exceptions import HTTPException
from starlette.responses import Response


class HttpError(HTTPException):
    """An error response. `reason` is a short word for the metric `vitrail_refused_total`."""

    def __init__(
        self, status: int, sentence: str, *, reason: str = "request", headers: dict[str, str] | None = None
    ) -> None:
        super().__init__(status, sentence, headers)
        self.reason = reason

    def response(self) -> Response:
        return json_response({"error": self.detail}, self.status_code, self.headers)


def service_unavailable(sentence: str, retry_after: float = 1.0, reason: str = "full") -> HttpError:
    """503 with a Retry-After header of 1 to 60 seconds."""
    headers = {"retry-after": str(min(60, max(1, math.ceil(retry_after))))}
    return HttpError(503, sentence, reason=reason, headers=headers)


def unprocessable(sentence: str) -> HttpError:
    """422: the request is well-formed, and cannot be fulfilled."""
    return HttpError(422, sentence)


def json_response(value: Any, status: int = 200, headers: Any = None) -> Response:
    return Response(json_bytes(value), status, headers, "application/json")


def json_bytes(value: Any) -> bytes:
    """JSON in ASCII: a label may hold half a surrogate pair, which has no UTF-8. NaN is an error."""
    return json.dumps(value, allow_nan=False, separators=(",", ":")).encode("ascii")
