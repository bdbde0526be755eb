"""A request's parameters: whole numbers and names in their ranges, or one sentence that says what is allowed."""

from __future__ import annotations

import re
from collections.abc import Sequence

from starlette.requests import Request

from vitrail.serving.refusals import unfit

NUMBER = re.compile(r"-?[0-9]{1,9}")


def check_names(request: Request, *known: str) -> None:
    """A misspelt parameter is refused: silently ignored, it would give another answer than the one asked for."""
    given = list(request.query_params.multi_items())
    for name, _ in given:
        if name not in known:
            allowed = ", ".join(known) or "none"
            raise unfit(f"there is no parameter {name[:40]!r} here: allowed are {allowed}")
    if len({name for name, _ in given}) < len(given):
        raise unfit("a parameter was given twice")


def whole(request: Request, name: str, default: int, low: int, high: int) -> int:
    text = request.query_params.get(name)
    if text is None:
        return default
    if not NUMBER.fullmatch(text) or not low <= int(text) <= high:
        raise unfit(f"{name} is a whole number from {low} to {high}")
    return int(text)


def numbers(request: Request, name: str, low: int, high: int) -> list[int] | None:
    """'0,2,5'; None where it was not given."""
    text = request.query_params.get(name)
    if text is None:
        return None
    parts = text.split(",")
    if len(parts) > 1000 or not all(NUMBER.fullmatch(part) and low <= int(part) <= high for part in parts):
        raise unfit(f"{name} is a list of whole numbers from {low} to {high}, such as 0,2")
    return [int(part) for part in parts]


def one_of(request: Request, name: str, choices: Sequence[str], default: str) -> str:
    text = request.query_params.get(name, default)
    if text not in choices:
        raise unfit(f"{name} is one of {', '.join(choices)}")
    return text
