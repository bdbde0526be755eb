"""The ASGI application: FastAPI with the routes and error handlers, and the middleware around it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from vitrail import __version__
from vitrail.errors import VitrailError
from vitrail.serving.http_errors import HttpError, json_bytes, unprocessable
from vitrail.serving.job_runner import JobRunner
from vitrail.serving.middleware.access_policy import AccessPolicy
from vitrail.serving.middleware.security import SecurityMiddleware, ServerState
from vitrail.serving.routes.attention_route import add_attention_route
from vitrail.serving.routes.docs_page import CSS, docs_page
from vitrail.serving.routes.explanation_routes import add_explanation_routes
from vitrail.serving.routes.look_route import add_look_route
from vitrail.serving.routes.prediction_routes import add_prediction_routes
from vitrail.serving.routes.query_parameters import StrictQueryRoute
from vitrail.serving.routes.search_routes import add_search_routes
from vitrail.serving.routes.server_routes import add_gauges, add_server_routes, add_static_routes, not_found
from vitrail.serving.routes.static_files import StaticFile, read_web_files
from vitrail.serving.served_index import ServedIndex
from vitrail.serving.served_model import ServedModel
from vitrail.serving.server_metrics import ServerMetrics
from vitrail.tasks.shared.answer_schemas import BOOLEAN, PROBABILITY, object_of
from vitrail.tasks.task import Task
from vitrail.visuals.palette import hexadecimal, palette

# FastAPI can send traces and metrics of its own with OpenTelemetry, also by an environment variable. We never do.
NO_TELEMETRY: Any = {
    "tracing": False,
    "metrics": False,
    "logs": False,
    "operation_spans": False,
    "auto_configure": False,
}
FAMILIARITY = "The share of held-out pictures of training that are at most as familiar; below 0.05 it is a stranger."
PREFIXES = ("/web/", "/v1/samples/", "/v1/index/")  # of paths that are one in the metrics


def create_app(
    runner: JobRunner, access: AccessPolicy, samples: Sequence[StaticFile] = (), index: ServedIndex | None = None
) -> SecurityMiddleware:
    """The routes of a model, the page, and the middleware. FastAPI's own /docs loads scripts from a CDN: it is off."""
    description = describe_model(runner.served, samples) | {"index": None if index is None else len(index)}
    state = ServerState()
    app = FastAPI(
        title=f"{description['name']}, served by Vitrail",
        version=__version__,
        description=f"A Vision Transformer for the task {description['task']}. Requests of many clients share its "
        "forward passes. Every refusal is {error: one sentence}.",
        docs_url=None,
        redoc_url=None,
        openapi_url=None,
        redirect_slashes=False,
        telemetry=NO_TELEMETRY,
    )
    app.router.route_class = StrictQueryRoute
    add_prediction_routes(app.router, runner)  # first: routes are matched in order, and this one is asked most
    add_look_route(app.router, runner)
    add_attention_route(app.router, runner)
    add_explanation_routes(app.router, runner)
    if index is not None:
        add_search_routes(app.router, runner, index)
    add_server_routes(app.router, runner, state, description)
    document = openapi_document(app, runner.served)
    files = read_web_files() | documentation_files(document)
    add_static_routes(app.router, files, samples)
    add_gauges(runner, state)
    add_error_handlers(app, runner.metrics)
    paths = {*document["paths"], *files}
    return SecurityMiddleware(app, access, runner.limits, runner.metrics, lambda path: _path_label(path, paths), state)


def describe_model(served: ServedModel, samples: Sequence[StaticFile]) -> dict[str, Any]:
    """What /v1/model answers. `colours`: of classes, the same as in reports and in files that `predict` writes."""
    links = [{"name": sample.name, "url": f"/v1/samples/{index}"} for index, sample in enumerate(samples)]
    description = served.describe(links)
    labels = description["labels"] if served.dense else None
    return {**description, "colours": [hexadecimal(colour) for colour in palette(labels)] if labels else None}


def openapi_document(app: FastAPI, served: ServedModel) -> dict[str, Any]:
    """The document of these routes, with the answers of the model's task."""
    document = get_openapi(title=app.title, version=app.version, description=app.description, routes=app.routes)
    if served.task is not None:
        results = document["components"]["schemas"]["PredictResponse"]["properties"]["results"]
        answer = answer_schema(served.task, served.engine.familiarity is not None)
        results["items"] = {"anyOf": [answer, {"$ref": "#/components/schemas/ErrorResponse"}]}
    document["components"]["securitySchemes"] = {"token": {"type": "http", "scheme": "bearer"}}
    document["security"] = [{}, {"token": []}]
    return document


def answer_schema(task: Task, tells_familiarity: bool) -> Mapping[str, Any]:
    """JSON schema of an answer: the task's, and how familiar the image is where the model's file tells."""
    if not tells_familiarity:
        return task.answer_schema
    told = object_of(familiarity=PROBABILITY | {"description": FAMILIARITY}, familiar=BOOLEAN)
    return {"allOf": [task.answer_schema, told]}


def documentation_files(document: dict[str, Any]) -> dict[str, StaticFile]:
    files = [
        StaticFile("/openapi.json", "application/json", json_bytes(document)),
        StaticFile("/docs", "text/html; charset=utf-8", docs_page(document).encode()),
        StaticFile("/docs.css", "text/css; charset=utf-8", CSS.encode()),
    ]
    return {file.name: file for file in files}


def add_error_handlers(app: FastAPI, metrics: ServerMetrics) -> None:
    """Every error is `{"error": "one sentence"}`. Those of the router get our sentences."""

    async def http_error(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        response_error = error if isinstance(error, HttpError) else _router_error(error)
        metrics.count_refusal(response_error.reason)
        return response_error.response()

    async def user_error(request: Request, error: Exception) -> Response:
        return unprocessable(" ".join(str(error).split())).response()

    async def bug(request: Request, error: Exception) -> Response:
        return HttpError(500, "something went wrong here; the server's own output tells what").response()

    app.add_exception_handler(HTTPException, http_error)
    app.add_exception_handler(VitrailError, user_error)
    app.add_exception_handler(Exception, bug)  # after the response it is raised again, and the middleware prints it


def _router_error(error: HTTPException) -> HttpError:
    if error.status_code != 405:
        return not_found()
    methods = ", ".join(sorted((error.headers or {})["Allow"].split(", ")))
    return HttpError(405, f"this address takes {methods}", reason="address", headers={"allow": methods})


def _path_label(path: str, paths: set[str]) -> str:
    for prefix in PREFIXES:
        if path.startswith(prefix):
            return prefix
    return path if path in paths else "other"
