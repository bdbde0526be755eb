"""/v1/search and /v1/index/ID: pictures of the served index, by a picture or by one of them, and how they look.

A client names a picture of the index by its id, never by a path: no other file can be asked for, and of its path only
the name is told.
"""

from __future__ import annotations

import re
import time
from pathlib import Path

from fastapi import APIRouter
from fastapi import Path as PathParameter
from starlette.requests import Request
from starlette.responses import Response

from vitrail.errors import VitrailError
from vitrail.images.unreadable import UnreadableImage
from vitrail.search.index.image_index import Neighbour
from vitrail.serving.http_errors import HttpError, json_response, unprocessable
from vitrail.serving.job_runner import JobRunner
from vitrail.serving.routes.post_images import post_images
from vitrail.serving.routes.query_parameters import whole_number_query
from vitrail.serving.routes.schemas import GET_ERRORS, SearchResponse, documented_responses
from vitrail.serving.served_index import ServedIndex
from vitrail.serving.served_model import encode_jpeg, error_sentence
from vitrail.text import shown

TOP = whole_number_query(24, 1, 200, "Pictures to find.")
ID = PathParameter(description="Of a picture, as /v1/search gives it.")
IDS = re.compile(r"[0-9]{1,18}")
JPEG = {"image/jpeg": {"schema": {"type": "string", "format": "binary"}}}
ERRORS = (*GET_ERRORS, 404)


def add_search_routes(router: APIRouter, runner: JobRunner, served: ServedIndex) -> None:
    @post_images(
        router,
        "/v1/search",
        "The pictures of the index that are most like an image, best first.",
        SearchResponse,
        example="curl -F image=@photo.jpg http://127.0.0.1:8000/v1/search?top=10",
    )
    async def search(request: Request, top: int = TOP) -> Response:
        started = time.perf_counter()
        async with runner.decode_one(request, runner.images) as image:
            work = runner.model_thread.call(lambda: served.embed(image.picture.pixels))
            vector = await runner.within_time_limit(request, work)
            found = await runner.run_in_pool(request, lambda: served.like_vector(vector, top))
        return _found(found, started)

    @router.get(
        "/v1/index/{id}/similar",
        summary="The pictures of the index that are most like one of them, itself first.",
        response_model=SearchResponse,
        responses=documented_responses(ERRORS),
    )
    async def similar(request: Request, id: str = ID, top: int = TOP) -> Response:
        started, number = time.perf_counter(), _id(id)
        with runner.images.reserve(1):
            try:
                found = await runner.run_in_pool(request, lambda: served.like_id(number, top))
            except VitrailError:
                raise HttpError(404, f"there is no picture {number} in the index", reason="address") from None
        return _found(found, started)

    @router.get(
        "/v1/index/{id}/picture",
        summary="A picture of the index as the model sees it, as JPEG.",
        response_class=Response,
        responses=documented_responses(ERRORS, JPEG),
    )
    async def picture(request: Request, id: str = ID) -> Response:
        number = _id(id)
        with runner.images.reserve(1):
            try:
                jpeg = await runner.within_time_limit(request, _picture(runner, served, number))
            except UnreadableImage as error:
                raise unprocessable(error_sentence(error)) from None
            except VitrailError:
                sentence = f"picture {number} is not in the index, or its file is not there any more"
                raise HttpError(404, sentence, reason="address") from None
        return Response(jpeg, media_type="image/jpeg")


async def _picture(runner: JobRunner, served: ServedIndex, number: int) -> bytes:
    name, data = await runner.pool.run(lambda: served.read_file(number, runner.limits.bytes))
    decoded = await runner.pool.decode(data, shown(name))
    return await runner.pool.run(lambda: encode_jpeg(decoded.pixels))


def _id(text: str) -> int:
    if not IDS.fullmatch(text):
        raise HttpError(404, "a picture of the index has a whole number for its id", reason="address")
    return int(text)


def _found(found: list[Neighbour], started: float) -> Response:
    results = [{"id": one.id, "name": shown(Path(one.path).name), "score": round(one.score, 4)} for one in found]
    return json_response({"results": results, "milliseconds": round(1000 * (time.perf_counter() - started), 1)})
