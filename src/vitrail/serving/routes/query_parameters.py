"""Query parameters: a route class that refuses unknown and repeated ones, and one sentence for each invalid value."""

from __future__ import annotations

import re
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any, TypeAlias

from fastapi import Query
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from pydantic.fields import FieldInfo
from pydantic.json_schema import SkipJsonSchema
from starlette.requests import Request
from starlette.responses import Response

from vitrail.serving.http_errors import HttpError, unprocessable

DIGITS = re.compile(r"-?[0-9]{1,9}")
MAX_LIST = 1000


OptionalText: TypeAlias = str | SkipJsonSchema[None]  # in the OpenAPI document a plain string that may be left out


class StrictQueryRoute(APIRoute):
    """Stricter than FastAPI: an unknown or repeated parameter gets 422, for if a misspelt one were ignored, the answer
    would be to another question. A whole number has digits only; pydantic would also take ' 5', '+5' and '1_000'."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = super().get_route_handler()
        fields = {field.alias: field.field_info for field in self.dependant.query_params}
        if "POST" not in (self.methods or ()) and not fields:  # a plain GET ignores its query, as other servers do
            return handle

        async def handle_strictly(request: Request) -> Response:
            if request.scope["query_string"]:
                _check_query(request, fields)
            try:
                return await handle(request)
            except RequestValidationError as error:
                name = error.errors()[0]["loc"][-1]
                raise _not_in_range(name, fields[name]) from None

        return handle_strictly


def whole_number_query(default: int, low: int, high: int, description: str) -> Any:
    return Query(default, ge=low, le=high, description=description)


TOP = whole_number_query(5, 1, 1000, "Guesses, where the task makes some.")
UNKNOWN = whole_number_query(0, 0, 1, "1: the answer to a picture unlike those of training is 'unknown'.")


def block_query(depth: int) -> Any:
    return whole_number_query(-1, -depth, depth - 1, "Counted from 0; -1 is the last.")


def parse_list(name: str, text: str | None, low: int, high: int) -> list[int] | None:
    """'0,2,5' -> [0, 2, 5]; None stays None."""
    if text is None:
        return None
    parts = text.split(",")
    if len(parts) > MAX_LIST or not all(DIGITS.fullmatch(part) and low <= int(part) <= high for part in parts):
        raise unprocessable(f"{name} is a list of whole numbers from {low} to {high}, such as 0,2")
    return [int(part) for part in parts]


def check_choice(name: str, text: str, choices: Sequence[str]) -> str:
    if text not in choices:
        raise unprocessable(f"{name} is one of {', '.join(choices)}")
    return text


def _check_query(request: Request, fields: Mapping[str, FieldInfo]) -> None:
    items = request.query_params.multi_items()
    for name, text in items:
        if name not in fields:
            allowed = ", ".join(fields) or "none"
            raise unprocessable(f"there is no parameter {name[:40]!r} here: allowed are {allowed}")
        if fields[name].annotation is int and not DIGITS.fullmatch(text):
            raise _not_in_range(name, fields[name])
    if len({name for name, _ in items}) < len(items):
        raise unprocessable("a parameter was given twice")


def _not_in_range(name: str, field: FieldInfo) -> HttpError:
    bounds = {key: getattr(item, key) for item in field.metadata for key in ("ge", "le") if hasattr(item, key)}
    return unprocessable(f"{name} is a whole number from {bounds['ge']} to {bounds['le']}")
