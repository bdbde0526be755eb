"""/v1/look: all that the page shows of one image at first, as packed bytes, from one forward pass."""

from __future__ import annotations

import time
from typing import Any, NamedTuple

from fastapi import APIRouter
from numpy.typing import NDArray
from starlette.requests import Request
from starlette.responses import Response

from vitrail.explanation.token_names import prefix_names
from vitrail.serving.decoding.picture_reader import Picture
from vitrail.serving.forward_batch import ForwardRequest, ForwardResult
from vitrail.serving.job_runner import DecodedImage, JobRunner
from vitrail.serving.map_encoding import attention_maps_of, decoder_query_maps, pack_parts
from vitrail.serving.overlays import overlay_positions, subsample_mask
from vitrail.serving.routes.post_images import post_images
from vitrail.serving.routes.query_parameters import TOP, block_query
from vitrail.serving.routes.schemas import BINARY, BINARY_CONTENT
from vitrail.serving.served_model import split_arrays


def add_look_route(router: APIRouter, runner: JobRunner) -> None:
    served, depth = runner.served, runner.served.checkpoint.config.depth
    block_parameter = block_query(depth)

    @post_images(
        router,
        "/v1/look",
        "Answer, what the model sees, and one block's attention of every token to every other, in one pass.",
        content=BINARY_CONTENT,
    )
    async def look(request: Request, block: int = block_parameter, top: int = TOP) -> Response:
        index = block % depth
        async with runner.decode_one(request, runner.images, with_jpeg=True) as image:
            forward = ForwardRequest(
                image.picture.pixels, lambda output: _look(runner, image.picture, output, top), index
            )
            result = await runner.within_time_limit(request, runner.model_thread.submit(forward))
            if image.picture.whole is not None and served.task is not None:
                answer = runner.model_thread.call(
                    lambda: served.answer(image.picture, None, top, take_turns=runner.model_thread.take_turns)
                )
                result = result._replace(answer=await runner.within_time_limit(request, answer))
        return _look_response(runner, image, index, result)


class LookResult(NamedTuple):
    answer: dict[str, Any] | None
    maps: dict[str, NDArray[Any] | bytes]
    forward_seconds: float
    map_seconds: float


def _look(runner: JobRunner, picture: Picture, output: ForwardResult, top: int) -> LookResult:
    """In the model thread: the answer and all maps of the block, from one forward pass. The answer to a picture in
    sliding windows comes later: in their passes others take turns, which they cannot within a batch."""
    started, served = time.perf_counter(), runner.served
    assert output.step is not None
    maps = attention_maps_of(served.model, output.step).parts()
    if output.query_attention is not None:
        maps |= decoder_query_maps(served.model, output.query_attention).parts("queries")
    answer = None if served.task is None or picture.whole is not None else served.answer(picture, output, top)
    return LookResult(answer, maps, output.seconds, time.perf_counter() - started)


def _look_response(runner: JobRunner, image: DecodedImage, block: int, result: LookResult) -> Response:
    answer, arrays = split_arrays(result.answer)
    seconds = {"decode": image.seconds, "forward": result.forward_seconds, "maps": result.map_seconds}
    header = {
        "answer": answer,
        "words": runner.served.words(result.answer),
        "grid": list(runner.served.grid_of(block)),
        "patches": list(runner.served.grid),
        "windows": runner.served.windows_of(block),
        "prefix": prefix_names(runner.served.checkpoint.config),
        "block": block,
        "size": list(image.picture.size),
        "milliseconds": {name: round(1000 * value, 1) for name, value in seconds.items()},
        **overlay_positions(result.answer or {}, image.picture.letterbox),
    }
    masks = {name: subsample_mask(array) for name, array in arrays.items()}
    return Response(pack_parts(header, {"picture": image.jpeg, **result.maps, **masks}), media_type=BINARY)
