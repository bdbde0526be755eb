"""A request that is not answered, as one sentence with its status. Whoever notices raises it; the door sends it."""

from __future__ import annotations

import json
import math
from typing import Any


class Refusal(Exception):
    """`why` is for programs that count: a short word in the metrics."""

    def __init__(
        self, status: int, sentence: str, *, why: str = "request", headers: dict[str, str] | None = None
    ) -> None:
        super().__init__(sentence)
        self.status, self.sentence, self.why = status, sentence, why
        self.headers = headers or {}

    def body(self) -> bytes:
        return as_json({"error": self.sentence})


def busy(sentence: str, seconds: float = 1.0, why: str = "full") -> Refusal:
    """503, and when to come back."""
    return Refusal(503, sentence, why=why, headers={"retry-after": str(min(60, max(1, math.ceil(seconds))))})


def unfit(sentence: str) -> Refusal:
    """422: understood, and not possible."""
    return Refusal(422, sentence)


def as_json(value: Any) -> bytes:
    """In ASCII, whatever labels are made of: half a surrogate pair has no UTF-8. No NaN, which is no JSON."""
    return json.dumps(value, allow_nan=False, separators=(",", ":")).encode("ascii")
