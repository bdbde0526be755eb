"""One forward pass for whatever is asked of the pictures in it: answers, embeddings, and any block's input for maps.

It is the model's own forward pass. Two hooks listen while it runs: what the head takes is the embedding, and what an
asked block takes is all that its attention maps need, so that a look costs one pass and not a second.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vitrail.data.inputs import normalise
from vitrail.model.box_heads import Attention as BoxAttention
from vitrail.model.box_heads import BoxDecoder
from vitrail.model.precision import autocast
from vitrail.model.vit import ViT
from vitrail.weights.preprocessing import Preprocessing


@dataclass(frozen=True)
class Passed:
    """What a pass leaves of one picture."""

    outputs: Tensor  # (K,), or whatever the model gives for an image; float32 on the CPU
    pooled: Tensor  # (D,), what the head reads
    tokens: Tensor | None  # (M, D), what the asked block takes
    turns: Tensor | None  # rotary positions
    queries: Tensor | None  # (heads, Q, N), what a box decoder's queries attend to at last, where a block was asked for
    seconds: float  # of the whole pass


@dataclass(frozen=True)
class Part:
    """A picture for the model, and what is made of its pass while it is there."""

    pixels: NDArray[np.uint8]  # (h, w, C)
    finish: Callable[[Passed], Any]
    block: int | None = None


@torch.inference_mode()
def passed(model: ViT, preprocessing: Preprocessing, parts: Sequence[Part]) -> list[Any]:
    """Each part's result. An exception of one `finish` is its result, and nobody else's."""
    started = time.perf_counter()
    weight = next(model.parameters())
    batch = torch.from_numpy(np.stack([part.pixels for part in parts])).to(weight.device)
    asked = sorted({part.block for part in parts if part.block is not None})
    with listening(model, asked) as heard, autocast(weight.device):
        outputs = model(normalise(batch, preprocessing).to(weight.dtype))
    pooled = (heard.pooled if heard.pooled is not None else as_vectors(outputs)).float().cpu()
    outputs = outputs.float().cpu()
    seconds = time.perf_counter() - started
    results = []
    for row, part in enumerate(parts):
        tokens = None if part.block is None else heard.tokens[part.block][row]
        queries = None if part.block is None or heard.decoder is None else heard.decoder[row]
        results.append(_finished(part, Passed(outputs[row], pooled[row], tokens, heard.turns, queries, seconds)))
    return results


@dataclass
class Heard:
    tokens: dict[int, Tensor]  # (B, M, D) by block
    turns: Tensor | None = None
    pooled: Tensor | None = None  # (B, D); None where there is no head
    decoder: Tensor | None = None  # (B, heads, Q, N)


@contextlib.contextmanager
def listening(model: ViT, blocks: Sequence[int]) -> Iterator[Heard]:
    heard = Heard({})

    def block_hook(number: int) -> Callable[..., None]:
        def keep(_: Any, arguments: tuple[Any, ...]) -> None:
            heard.tokens[number] = arguments[0]
            heard.turns = arguments[1] if len(arguments) > 1 else None

        return keep

    def keep_pooled(_: Any, arguments: tuple[Any, ...]) -> None:
        heard.pooled = as_vectors(arguments[0])

    def keep_queries(attention: BoxAttention, arguments: tuple[Any, ...]) -> None:
        heard.decoder = attention.maps(*arguments[:2])

    hooks = [model.blocks[number].register_forward_pre_hook(block_hook(number)) for number in blocks]
    if model.head is not None:
        hooks.append(model.head.register_forward_pre_hook(keep_pooled))
    if isinstance(model.head, BoxDecoder) and blocks:
        hooks.append(model.head.last_look.register_forward_pre_hook(keep_queries))
    try:
        yield heard
    finally:
        for hook in hooks:
            hook.remove()


def as_vectors(read: Any) -> Tensor:
    """What a head reads as one vector an image: it is that already, or tokens, or a dense head's `Seen`, whose last
    patches are those of the last block. Of tokens the mean is taken."""
    tokens: Tensor = read if isinstance(read, Tensor) else read.patches[-1]
    return tokens if tokens.dim() == 2 else tokens.mean(1)


def _finished(part: Part, result: Passed) -> Any:
    try:
        return part.finish(result)
    except Exception as error:
        return error
