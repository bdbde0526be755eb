"""How a route that takes images is declared: its body, which the route reads itself, and its errors are documented."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fastapi import APIRouter
from pydantic import BaseModel
from starlette.responses import JSONResponse, Response

from vitrail.serving.routes.schemas import documented_responses, image_body


def post_images(
    router: APIRouter,
    path: str,
    summary: str,
    response_model: type[BaseModel] | None = None,
    *,
    max_images: int = 1,
    content: dict[str, Any] | None = None,
    example: str | None = None,
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """`router.post` for images. response_model: None for answers that are no JSON. content: of other answers, by type.
    example: a command for /docs."""
    body = {"requestBody": image_body(max_images)}
    return router.post(
        path,
        summary=summary,
        response_model=response_model,
        response_class=Response if response_model is None else JSONResponse,
        responses=documented_responses(content=content),
        openapi_extra=body if example is None else {**body, "x-example": example},
    )
