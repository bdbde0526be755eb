"""/v1/explain and /v1/walk: explanations of one image. Each takes as long as many forward passes."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
from fastapi import APIRouter, Query
from starlette.requests import Request
from starlette.responses import Response

from vitrail.serving.http_errors import json_response, unprocessable
from vitrail.serving.image_explanation import available_methods, explain_image, walk_image
from vitrail.serving.job_runner import JobRunner
from vitrail.serving.routes.post_images import post_images
from vitrail.serving.routes.query_parameters import OptionalText, block_query, check_choice
from vitrail.serving.routes.schemas import ExplainResponse, WalkResponse
from vitrail.serving.served_model import ServedModel, to_python

MAX_LISTED_LABELS = 100  # in the OpenAPI document


def add_explanation_routes(router: APIRouter, runner: JobRunner) -> None:
    served, take_turns = runner.served, runner.model_thread.take_turns
    depth, methods = served.checkpoint.config.depth, available_methods(served.checkpoint)
    block_parameter = block_query(depth)
    method_parameter = Query(methods[0], description="Which explanation.", json_schema_extra={"enum": [*methods]})
    label_parameter = _label_query(served.target_labels)

    @post_images(router, "/v1/explain", "Where the answer comes from: one number a patch.", ExplainResponse)
    async def explain(
        request: Request, method: str = method_parameter, label: OptionalText = label_parameter
    ) -> Response:
        check_choice("method", method, methods)
        target, started = _target_index(served, label), time.perf_counter()
        async with runner.decode_one(request, runner.explanations) as image:
            job = runner.model_thread.call_long(
                lambda: explain_image(
                    served.explanation_engine, served.input_of(image.picture), method, target, take_turns
                )
            )
            heatmap, output = await runner.within_time_limit(request, job)
        labels = served.target_labels
        answer = {
            "method": method,
            "label": labels[output] if labels is not None and output is not None else None,
            "grid": list(heatmap.shape),
            "map": _five_digits(heatmap),
            "milliseconds": round(1000 * (time.perf_counter() - started), 1),
        }
        return json_response(answer)

    @post_images(router, "/v1/walk", "Every step from pixels to the answer, with pictures.", WalkResponse)
    async def walk(request: Request, block: int = block_parameter) -> Response:
        index, labels = block % depth, served.target_labels
        async with runner.decode_one(request, runner.explanations) as image:
            pixels = image.picture.pixels
            job = runner.model_thread.call_long(
                lambda: walk_image(
                    served.explanation_engine, served.input_of(image.picture), pixels, labels, index, take_turns
                )
            )
            steps = await runner.within_time_limit(request, job)
            return await runner.run_in_pool(request, lambda: json_response({"block": index, "steps": to_python(steps)}))


def _label_query(labels: list[str] | None) -> Any:
    listed = {"enum": [*labels]} if labels and len(labels) <= MAX_LISTED_LABELS else None
    description = "What is explained instead of the model's answer."
    return Query(None, description=description, json_schema_extra=listed, include_in_schema=bool(labels))


def _target_index(served: ServedModel, label: str | None) -> int | None:
    if label is None:
        return None
    labels = served.target_labels or []
    if label not in labels:
        raise unprocessable("the model knows no such label: /v1/model has the list")
    return labels.index(label)


def _five_digits(values: np.ndarray) -> Any:
    """More digits than that have no meaning in a map."""
    flat = [float(f"{value:.5g}") for value in np.asarray(values, np.float64).ravel()]
    return np.array(flat).reshape(values.shape).tolist()
