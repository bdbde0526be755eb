"""/v1/look and /v1/attention: attention maps of one image, as packed bytes or as JSON."""

from __future__ import annotations

import time
from typing import Any, NamedTuple

import numpy as np
from fastapi import APIRouter, Query
from numpy.typing import NDArray
from starlette.requests import Request
from starlette.responses import Response

from vitrail.explanation.token_names import prefix_names, token_index, token_name
from vitrail.serving.forward_batch import ForwardRequest, ForwardResult
from vitrail.serving.http_errors import json_response, unprocessable
from vitrail.serving.job_runner import DecodedImage, JobRunner
from vitrail.serving.map_encoding import Maps, attention_maps_of, decoder_query_maps, pack_parts
from vitrail.serving.overlays import overlay_positions, subsample_mask
from vitrail.serving.routes.prediction_routes import TOP
from vitrail.serving.routes.query_parameters import (
    OptionalText,
    block_query,
    parse_list,
)
from vitrail.serving.routes.schemas import BINARY, BINARY_CONTENT, AttentionResponse, documented_responses, image_body
from vitrail.serving.served_model import Picture, split_arrays

MAX_JSON_NUMBERS = 2_000_000  # of maps in a JSON answer; more are sent as bytes only


def add_attention_routes(router: APIRouter, runner: JobRunner) -> None:
    config = runner.served.checkpoint.config
    block_parameter, body = block_query(config.depth), {"requestBody": image_body(1)}
    query_parameter = Query(None, description=_query_description(runner))
    heads_parameter = Query(
        None, description="Such as 0,2; without it all.", json_schema_extra={"pattern": "^[0-9]{1,9}(,[0-9]{1,9})*$"}
    )

    @router.post(
        "/v1/look",
        summary="Answer, what the model sees, and one block's attention of every token to every other, in one pass.",
        response_class=Response,
        responses=documented_responses(content=BINARY_CONTENT),
        openapi_extra=body,
    )
    async def look(request: Request, block: int = block_parameter, top: int = TOP) -> Response:
        index = block % config.depth
        async with runner.decode_one(request, runner.images, with_jpeg=True) as image:
            forward = ForwardRequest(
                image.picture.pixels, lambda output: _look(runner, image.picture, output, top), index
            )
            result = await runner.within_time_limit(request, runner.model_thread.submit(forward))
        return _look_response(runner, image, index, result)

    @router.post(
        "/v1/attention",
        summary="Attention maps of a block; as bytes, or as JSON if the request accepts application/json.",
        response_model=AttentionResponse,
        responses=documented_responses(content=BINARY_CONTENT),
        openapi_extra=body,
    )
    async def attention(
        request: Request,
        block: int = block_parameter,
        query: OptionalText = query_parameter,
        heads: OptionalText = heads_parameter,
    ) -> Response:
        index, grid = block % config.depth, runner.served.grid
        head_list = parse_list("heads", heads, 0, config.heads - 1)
        token = None if query is None else token_index(_index_or_name(query), config, grid)
        as_json = "application/json" in request.headers.get("accept", "")
        if as_json:
            tokens = config.prefix + grid[0] * grid[1]
            _check_json_size(len(head_list or range(config.heads)) * (tokens if token is None else 1) * tokens)

        def rows(output: ForwardResult) -> Maps:
            assert output.step is not None
            queries = None if token is None else [token]
            return attention_maps_of(runner.served.model, output.step, queries=queries, heads=head_list)

        async with runner.decode_one(request, runner.images) as image:
            job = runner.model_thread.submit(ForwardRequest(image.picture.pixels, rows, index))
            maps = await runner.within_time_limit(request, job)
        header = {
            "block": index,
            "query": None if token is None else token_name(token, config, grid),
            "heads": head_list if head_list is not None else list(range(config.heads)),
            "grid": list(grid),
            "prefix": prefix_names(config),
        }
        if as_json:
            return await runner.run_in_pool(
                lambda: json_response({**header, "maps": np.round(maps.values(), 6).tolist()})
            )
        return Response(pack_parts(header, {**maps.parts()}), media_type=BINARY)


class LookResult(NamedTuple):
    answer: dict[str, Any] | None
    maps: dict[str, NDArray[Any] | bytes]
    forward_seconds: float
    map_seconds: float


def _look(runner: JobRunner, picture: Picture, output: ForwardResult, top: int) -> LookResult:
    """In the model thread: the answer and all maps of the block, from one forward pass."""
    started, served = time.perf_counter(), runner.served
    assert output.step is not None
    maps = attention_maps_of(served.model, output.step).parts()
    if output.query_attention is not None:
        maps |= decoder_query_maps(served.model, output.query_attention).parts("queries")
    answer = None if served.task is None else served.answer(picture, output, top)
    return LookResult(answer, maps, output.seconds, time.perf_counter() - started)


def _look_response(runner: JobRunner, image: DecodedImage, block: int, result: LookResult) -> Response:
    answer, arrays = split_arrays(result.answer)
    seconds = {"decode": image.seconds, "forward": result.forward_seconds, "maps": result.map_seconds}
    header = {
        "answer": answer,
        "words": runner.served.words(result.answer),
        "grid": list(runner.served.grid),
        "prefix": prefix_names(runner.served.checkpoint.config),
        "block": block,
        "size": list(image.picture.size),
        "milliseconds": {name: round(1000 * value, 1) for name, value in seconds.items()},
        **overlay_positions(result.answer or {}, image.picture.letterbox),
    }
    masks = {name: subsample_mask(array) for name, array in arrays.items()}
    return Response(pack_parts(header, {"picture": image.jpeg, **result.maps, **masks}), media_type=BINARY)


def _query_description(runner: JobRunner) -> str:
    rows, columns = runner.served.grid
    names = ", ".join(prefix_names(runner.served.checkpoint.config)) or "a patch"
    return (
        f"Whose attention: {names}, a patch as ROW,COLUMN up to {rows - 1},{columns - 1}, or a token's index. "
        "Without it: of every token."
    )


def _check_json_size(numbers: int) -> None:
    if numbers > MAX_JSON_NUMBERS:
        raise unprocessable(f"{numbers:,} numbers are too many for JSON: ask for one query, or for {BINARY}")


def _index_or_name(text: str) -> int | str:
    return int(text) if text.isascii() and text.removeprefix("-").isdigit() and len(text) < 10 else text
