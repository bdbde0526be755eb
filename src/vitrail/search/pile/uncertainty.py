"""How unsure a model is of each image of a pile, and what it takes them for."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vitrail.images.unreadable import UnreadableImage
from vitrail.inference.predictor import Predictor
from vitrail.model.heads.linear_head import LinearHead
from vitrail.progress import ProgressBar
from vitrail.search.embedding_engine import POOLED
from vitrail.search.embeddings import Embedder, Vectors
from vitrail.tasks.registry import EMBED

BATCH = 4096  # vectors that go through the head at a time


class Uncertainty(NamedTuple):
    """Of images, in their order."""

    values: NDArray[np.float64]  # (N,) from 0 to 1
    answers: list[str]  # (N,) in words; "" where an answer is about places


def uncertainty_of(
    predictor: Predictor, embedder: Embedder, paths: Sequence[Path], vectors: Vectors
) -> Uncertainty | None:
    """None for a model without a head, or whose outputs do not say how sure it is.

    vectors (N, D): of the images, by the embedder. Where they are what the head reads, the images are not run again.
    """
    engine = predictor.engine
    if engine.checkpoint.task == EMBED:
        return None
    values: list[NDArray[np.float64]] = []
    answers: list[str] = []
    with torch.inference_mode():
        for outputs in _outputs(predictor, embedder, paths, vectors):
            unsure = engine.task.uncertainty(outputs)
            if unsure is None:
                return None
            values.append(unsure.double().numpy())
            dense = engine.processor.dense
            answers += [""] * len(outputs) if dense else map(engine.task.words, engine.task.answer(outputs, 2))
    return Uncertainty(np.concatenate(values), answers)


def _outputs(predictor: Predictor, embedder: Embedder, paths: Sequence[Path], vectors: Vectors) -> Iterator[Tensor]:
    """The model's outputs (B, ...) for all images, in their order, before decoding."""
    model = predictor.checkpoint.model
    head, pooled = model.head, embedder.what == POOLED and not embedder.normalise
    if isinstance(head, LinearHead) and len(model.output_layers()) == 1 and pooled:
        device = next(head.parameters()).device
        for some in torch.from_numpy(vectors).split(BATCH):
            yield head(some.to(device)).float().cpu()
        return
    with ProgressBar("asking the model", len(paths)) as bar:
        for _, output in predictor.outputs(paths, decode=False):
            bar.step()
            if isinstance(output, UnreadableImage):  # it could be read a moment ago
                raise output
            yield output[None]
