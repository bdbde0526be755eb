"""One forward pass for all requests of a batch: their answers, embeddings, and any block's step for attention maps."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vitrail.inference.engine import Engine
from vitrail.model.encoder import BlockStep, Capture


@dataclass(frozen=True)
class ForwardResult:
    """What a forward pass gives for one image."""

    outputs: Tensor  # (K,), or whatever the model gives for an image; float32 on the CPU
    pooled: Tensor | None  # (D,), what the head reads; None where nobody asked for it and familiarity is not told
    step: BlockStep | None  # of the requested block, a batch of one
    query_attention: Tensor | None  # (heads, Q, N), of a box decoder, where a block was requested
    seconds: float  # of the whole pass


@dataclass(frozen=True)
class ForwardRequest:
    """An image for the model, and what is computed from its result in the model's thread."""

    pixels: NDArray[np.uint8]  # (h, w, C)
    finish: Callable[[ForwardResult], Any]
    block: int | None = None  # whose attention maps `finish` needs
    pooled: bool = False  # whether it needs the vector that the head reads

    @property
    def looks_inside(self) -> bool:
        """Whether outputs alone will not do."""
        return self.pooled or self.block is not None


@torch.inference_mode()
def run_batch(engine: Engine, requests: Sequence[ForwardRequest]) -> list[Any]:
    """What `finish` gives for each request. An exception that one raises is its result, and nobody else's."""
    started = time.perf_counter()
    blocks = {request.block for request in requests if request.block is not None}
    capture = None
    if engine.familiarity is not None or any(request.looks_inside for request in requests):
        capture = Capture(blocks, query_attention=bool(blocks))
    outputs = engine.forward(engine.transform([request.pixels for request in requests]), capture).cpu()
    pooled = None if capture is None or capture.pooled is None else capture.pooled.float().cpu()
    seconds = time.perf_counter() - started
    results = []
    for index, request in enumerate(requests):
        step = query_attention = None
        if capture is not None and request.block is not None:
            step = capture.steps[request.block].of_image(index)
            query_attention = None if capture.decoder_attention is None else capture.decoder_attention[index]
        vector = None if pooled is None else pooled[index]
        results.append(_finish(request, ForwardResult(outputs[index], vector, step, query_attention, seconds)))
    return results


def _finish(request: ForwardRequest, result: ForwardResult) -> Any:
    try:
        return request.finish(result)
    except Exception as error:
        return error
