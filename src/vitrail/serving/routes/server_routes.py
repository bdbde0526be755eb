"""The server itself: the model's description, health, metrics, and static files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from vitrail.serving.http_errors import HttpError, json_bytes, json_response, service_unavailable
from vitrail.serving.job_runner import JobRunner
from vitrail.serving.middleware.security import ServerState
from vitrail.serving.routes.schemas import GET_ERRORS, ModelResponse, StatusResponse, documented_responses
from vitrail.serving.routes.static_files import StaticFile
from vitrail.serving.server_metrics import CONTENT_TYPE

JSON = "application/json"


def add_server_routes(router: APIRouter, runner: JobRunner, state: ServerState, description: Mapping[str, Any]) -> None:
    """description: what /v1/model answers."""
    responses, model_json = documented_responses(GET_ERRORS), json_bytes(description)

    @router.get("/v1/model", summary="What the model is.", response_model=ModelResponse, responses=responses)
    @router.head("/v1/model", include_in_schema=False)
    async def model() -> Response:
        return Response(model_json, media_type=JSON)

    @router.get("/healthz", summary="Whether the server is alive.", response_model=StatusResponse, responses=responses)
    @router.head("/healthz", include_in_schema=False)
    async def healthz() -> Response:
        return Response(b'{"status":"alive"}', media_type=JSON)

    @router.get(
        "/readyz",
        summary="Whether it takes requests: 503 while it stops.",
        response_model=StatusResponse,
        responses=responses,
    )
    @router.head("/readyz", include_in_schema=False)
    async def readyz() -> Response:
        if state.draining:
            raise service_unavailable("the server is stopping", reason="stopping")
        return json_response({"status": "ready"})

    text = {"text/plain": {"schema": {"type": "string"}}}
    metrics_responses = documented_responses(GET_ERRORS, text)

    @router.get("/metrics", summary="Counters for Prometheus.", response_class=Response, responses=metrics_responses)
    @router.head("/metrics", include_in_schema=False)
    async def metrics() -> Response:
        return Response(runner.metrics.text(), headers={"content-type": CONTENT_TYPE})


def add_static_routes(router: APIRouter, files: Mapping[str, StaticFile], samples: Sequence[StaticFile]) -> None:
    """files: by path. They are in memory: no path of a request ever opens a file."""
    by_path = dict(files) | {f"/v1/samples/{index}": sample for index, sample in enumerate(samples)}

    async def static_file(request: Request) -> Response:
        file = by_path.get(request.scope["path"])
        if file is None:
            raise not_found()
        headers = {"content-type": file.content_type}
        return Response(file.data, headers=headers | ({"cache-control": file.cache} if file.cache else {}))

    fixed = [path for path in by_path if not path.startswith(("/web/", "/v1/samples/"))]
    for path in (*fixed, "/web/{path:path}", "/v1/samples/{name}"):
        router.add_route(path, static_file, methods=["GET"], include_in_schema=False)


def add_gauges(runner: JobRunner, state: ServerState) -> None:
    metrics, images, explanations = runner.metrics, runner.images, runner.explanations
    metrics.add_gauge("vitrail_requests_in_hand", "Requests being read or answered.", lambda: state.active_requests)
    metrics.add_gauge(
        "vitrail_images_in_hand",
        "Images being decoded, waiting or in the model.",
        lambda: images.used + explanations.used,
    )
    metrics.add_gauge("vitrail_jobs_waiting", "Jobs that wait for the model.", lambda: runner.model_thread.queue_length)


def not_found() -> HttpError:
    return HttpError(404, "there is nothing at this address: /docs tells what there is", reason="address")
