"""/v1/attention: attention maps of one image, as packed bytes or as JSON."""

from __future__ import annotations

import numpy as np
from fastapi import APIRouter, Query
from starlette.requests import Request
from starlette.responses import Response

from vitrail.explanation.token_names import prefix_names, token_index, token_name
from vitrail.model.encoder_config import EncoderConfig
from vitrail.model.positions import Grid
from vitrail.serving.forward_batch import ForwardRequest, ForwardResult
from vitrail.serving.http_errors import json_response, unprocessable
from vitrail.serving.job_runner import JobRunner
from vitrail.serving.map_encoding import Maps, attention_maps_of, pack_parts
from vitrail.serving.routes.post_images import post_images
from vitrail.serving.routes.query_parameters import OptionalText, block_query, parse_list
from vitrail.serving.routes.schemas import BINARY, BINARY_CONTENT, AttentionResponse

MAX_JSON_NUMBERS = 2_000_000  # of maps in a JSON answer; more are sent as bytes only


def add_attention_route(router: APIRouter, runner: JobRunner) -> None:
    config = runner.served.checkpoint.config
    block_parameter = block_query(config.depth)
    query_parameter = Query(None, description=_query_description(runner))
    heads_parameter = Query(
        None, description="Such as 0,2; without it all.", json_schema_extra={"pattern": "^[0-9]{1,9}(,[0-9]{1,9})*$"}
    )

    @post_images(
        router,
        "/v1/attention",
        "Attention maps of a block; as bytes, or as JSON if the request accepts application/json.",
        AttentionResponse,
        content=BINARY_CONTENT,
    )
    async def attention(
        request: Request,
        block: int = block_parameter,
        query: OptionalText = query_parameter,
        heads: OptionalText = heads_parameter,
    ) -> Response:
        index = block % config.depth
        grid, count = runner.served.grid_of(index), config.heads_of(index)
        head_list = parse_list("heads", heads, 0, count - 1)
        token = None if query is None else token_index(_index_or_name(query), config, grid, runner.served.grid)
        as_json = "application/json" in request.headers.get("accept", "")
        if as_json:
            tokens = config.prefix + grid[0] * grid[1]
            _check_json_size(len(head_list or range(count)) * (tokens if token is None else 1) * tokens)

        def rows(output: ForwardResult) -> Maps:
            assert output.step is not None
            queries = None if token is None else [token]
            return attention_maps_of(runner.served.model, output.step, queries=queries, heads=head_list)

        header = {
            "block": index,
            "query": None if query is None else _token_name(query, config, runner.served.grid, grid),
            "heads": head_list if head_list is not None else list(range(count)),
            "grid": list(grid),
            "windows": runner.served.windows_of(index),
            "prefix": prefix_names(config),
        }

        async with runner.decode_one(request, runner.images) as image:
            job = runner.model_thread.submit(ForwardRequest(image.picture.pixels, rows, index))
            maps = await runner.within_time_limit(request, job)
            if as_json:
                return await runner.run_in_pool(
                    request, lambda: json_response({**header, "maps": np.round(maps.values(), 6).tolist()})
                )
        return Response(pack_parts(header, {**maps.parts()}), media_type=BINARY)


def _query_description(runner: JobRunner) -> str:
    rows, columns = runner.served.grid
    names = ", ".join(prefix_names(runner.served.checkpoint.config)) or "a patch"
    return (
        f"Whose attention: {names}, a patch as ROW,COLUMN up to {rows - 1},{columns - 1}, or a token's index. "
        "Where patches were merged, the token that holds the patch is asked. Without it: of every token."
    )


def _token_name(query: str, config: EncoderConfig, patches: Grid, grid: Grid) -> str:
    """A patch is called as it was asked for; an index by what it is in its block."""
    asked = _index_or_name(query)
    own = grid if isinstance(asked, int) else patches
    return token_name(token_index(asked, config, own), config, own)


def _check_json_size(numbers: int) -> None:
    if numbers > MAX_JSON_NUMBERS:
        raise unprocessable(f"{numbers:,} numbers are too many for JSON: ask for one query, or for {BINARY}")


def _index_or_name(text: str) -> int | str:
    return int(text) if text.isascii() and text.removeprefix("-").isdigit() and len(text) < 10 else text
