"""Embeddings: what a network makes of an image before its head, on any backend, for any number of images.

A checkpoint without its head is a network like any other, so an embedding is the output of an `Engine`: read ahead in
threads, run in batches and given in order by the one `Predictor`.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Generator, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias, Unpack

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from vitrail.images.unreadable import UnreadableImage
from vitrail.inference.backends.graph_cache import fingerprint
from vitrail.inference.engine import Engine
from vitrail.inference.predictor import Predictor
from vitrail.inference.prefetch import Pause
from vitrail.inference.read_source import Source
from vitrail.inference.running_options import AnsweringOptions
from vitrail.options import takes_options
from vitrail.search.embedding_engine import POOLED as POOLED
from vitrail.search.embedding_engine import WHAT as WHAT
from vitrail.search.embedding_engine import embedding_engine, embedding_width
from vitrail.weights.checkpoint import Checkpoint

Vectors: TypeAlias = NDArray[np.float32]


@dataclass(frozen=True)
class Embedding:
    """What the model makes of one source, or why that could not be read."""

    source: Source
    vector: Vectors | None = None  # (D,), or (N, D) for patches; None where there is an error
    error: UnreadableImage | None = None


class Embedder:
    """Embeddings of any number of images, in their order.

    model: whatever `Engine.open` takes. what: "pooled" is the model's own pooling; "cls" the [CLS] token, "mean" the
    mean of the patches, "both" the two side by side, "patches" every patch, (N, D), row by row; all after the final
    norm. normalise: vectors of length 1, whose dot product is the cosine. options: as `Predictor` takes them; of an
    engine, its own backend, precision and batch size are used.
    """

    @takes_options(AnsweringOptions)
    def __init__(
        self,
        model: str | Path | Checkpoint | Engine,
        *,
        what: str = POOLED,
        normalise: bool = False,
        **options: Unpack[AnsweringOptions],
    ) -> None:
        self.what, self.normalise = what, normalise
        self.engine = embedding_engine(model, what, options)
        self._predictor = Predictor(self.engine, workers=options["workers"])
        self.checkpoint = self.engine.checkpoint
        self.width = embedding_width(self.checkpoint, what)
        self.fingerprint = self._fingerprint()

    def _fingerprint(self) -> str:
        """Of weights, config and preprocessing, `what` and `normalise`: vectors with two of them never mix."""
        described = {
            "network": fingerprint(self.engine.network),
            "preprocessing": self.checkpoint.preprocessing.to_dict(),
            "what": self.what,
            "normalise": self.normalise,
        }
        return hashlib.sha256(json.dumps(described, sort_keys=True).encode()).hexdigest()[:32]

    def embed(self, sources: Iterable[Source | Pause]) -> Generator[Embedding, None, None]:
        """Each source with its vector or its error, in order. Memory is flat: a few batches are held at a time."""
        with contextlib.closing(self._predictor.outputs(sources)) as outputs:
            for source, output in outputs:
                if isinstance(output, UnreadableImage):
                    yield Embedding(source, error=output)
                else:
                    yield Embedding(source, self._vector(output))

    def _vector(self, output: Tensor) -> Vectors:
        vector: Vectors = output.numpy()
        return normalised(vector) if self.normalise else vector.copy()  # a view would keep its whole batch in memory


def embed_all(embedder: Embedder, sources: Iterable[Source]) -> tuple[Vectors, list[int], list[UnreadableImage]]:
    """The vectors (n, D) of the sources that could be read, their places among the sources, and the others' errors."""
    vectors: list[Vectors] = []
    places: list[int] = []
    errors: list[UnreadableImage] = []
    for place, embedding in enumerate(embedder.embed(sources)):
        if embedding.vector is None:
            assert embedding.error is not None
            errors.append(embedding.error)
        else:
            vectors.append(embedding.vector)
            places.append(place)
    return np.stack(vectors) if vectors else np.empty((0, embedder.width), np.float32), places, errors


def normalised(vectors: Vectors) -> Vectors:
    """(..., D) with length 1; a vector of zeros stays."""
    length = np.linalg.norm(vectors, axis=-1, keepdims=True)
    return np.asarray(vectors / np.maximum(length, 1e-12), dtype=np.float32)
