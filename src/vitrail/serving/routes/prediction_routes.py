"""/v1/predict and /v1/embed: answers and embeddings for one or more images."""

from __future__ import annotations

import functools
import time
from collections.abc import Sequence
from typing import Any

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from vitrail.images.unreadable import UnreadableImage
from vitrail.serving.decoding.picture_reader import Picture
from vitrail.serving.forward_batch import ForwardResult
from vitrail.serving.http_errors import json_response, unprocessable
from vitrail.serving.job_runner import JobRunner
from vitrail.serving.routes.post_images import post_images
from vitrail.serving.routes.query_parameters import TOP, UNKNOWN
from vitrail.serving.routes.schemas import EmbedResponse, PredictResponse
from vitrail.serving.served_model import encode_png, error_sentence, split_arrays


def add_prediction_routes(router: APIRouter, runner: JobRunner) -> None:
    served, take_turns = runner.served, runner.model_thread.take_turns
    max_images = runner.limits.images

    @post_images(
        router,
        "/v1/predict",
        "The model's answer for each image, in their order.",
        PredictResponse,
        max_images=max_images,
        example="curl -F image=@photo.jpg http://127.0.0.1:8000/v1/predict",
    )
    async def predict(request: Request, top: int = TOP, unknown: int = UNKNOWN) -> Response:
        if served.task is None:
            raise unprocessable(served.no_task)
        if unknown:
            served.check_unknown()
        started = time.perf_counter()

        def finish(picture: Picture, output: ForwardResult | None) -> dict[str, Any]:
            return served.answer(picture, output, top, bool(unknown), take_turns)

        async with runner.run_each(request, finish) as results:
            answers = await runner.within_time_limit(request, _json_answers(runner, results))
        return json_response({"results": answers, "milliseconds": round(1000 * (time.perf_counter() - started), 1)})

    @post_images(
        router, "/v1/embed", "What the head reads of each image: one vector.", EmbedResponse, max_images=max_images
    )
    async def embed(request: Request) -> Response:
        async with runner.run_each(request, lambda _, output: served.embedding(output), embeds=True) as results:
            vectors = [
                {"error": error_sentence(item)} if isinstance(item, UnreadableImage) else item for item in results
            ]
            width = next(len(item) for item in results if isinstance(item, list))
        return json_response({"embeddings": vectors, "width": width})


async def _json_answers(runner: JobRunner, results: Sequence[dict[str, Any] | UnreadableImage]) -> list[Any]:
    return [await _json_answer(runner, result) for result in results]


async def _json_answer(runner: JobRunner, result: dict[str, Any] | UnreadableImage) -> Any:
    """An answer as JSON; its arrays, such as a mask, as PNG in base64."""
    if isinstance(result, UnreadableImage):
        return {"error": error_sentence(result)}
    answer, arrays = split_arrays(result)
    if runner.served.task is not None:
        arrays = runner.served.task.png_arrays(result)
    for name, array in arrays.items():
        answer[f"{name}_png"] = await runner.pool.run(functools.partial(encode_png, array))
    return answer
