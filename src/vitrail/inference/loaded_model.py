"""`vitrail.load`: a checkpoint that also answers."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterable, Sequence
from typing import Any, ParamSpec, overload

import torch
from torch import Tensor

from vitrail.errors import VitrailError
from vitrail.images.unreadable import UnreadableImage
from vitrail.inference.predictor import Predictor
from vitrail.inference.read_source import SOURCES, Source
from vitrail.weights.checkpoint import Checkpoint
from vitrail.weights.load import load as load_checkpoint

P = ParamSpec("P")


class Model(Checkpoint):
    """What `vitrail.load` gives: a checkpoint, and its answers."""

    @overload
    def predict(
        self, source: Source, top: int = 5, *, errors: str = "raise", unknown: bool = False, **options: Any
    ) -> dict[str, Any]: ...
    @overload
    def predict(
        self, source: Iterable[Source], top: int = 5, *, errors: str = "raise", unknown: bool = False, **options: Any
    ) -> list[dict[str, Any]]: ...
    def predict(
        self,
        source: Source | Iterable[Source],
        top: int = 5,
        *,
        errors: str = "raise",
        unknown: bool = False,
        **options: Any,
    ) -> dict[str, Any] | list[dict[str, Any]]:
        """The answer for an image, or a list of answers for several, in their order.

        source: a path, the bytes of a file, a Pillow image or an array (height, width, channels); or several of these.
        errors: 'raise' UnreadableImage for one that cannot be read, or 'return' {"error": why} in its place.
        unknown: the answer to a picture unlike those of training is "unknown"; every answer of a model whose file tells
        it has `familiarity` and `familiar`.
        options: engine, precision, device, batch_size, workers, calibration and fast_decode, as `Predictor` takes them.
        Use it, too, for a stream too long for a list.
        """
        if errors not in ("raise", "return"):
            raise VitrailError(f"errors is {errors!r}; choose one of raise, return")
        answers = []
        sources = _as_iterable(source)
        if isinstance(sources, Sequence):
            options.setdefault("calibration", sources)
        for prediction in Predictor(self, **options).predict(sources, top, unknown=unknown):
            if prediction.error is not None and errors == "raise":
                raise prediction.error
            answers.append({"error": str(prediction.error)} if prediction.answer is None else prediction.answer)
        return answers[0] if isinstance(source, SOURCES) else answers

    def outputs(self, source: Source | Iterable[Source], **options: Any) -> Tensor:
        """The network's outputs (images, K), before they become answers; without a head, pooled vectors (images, D)."""
        rows = []
        for _, row in Predictor(self, **options).outputs(_as_iterable(source)):
            if isinstance(row, UnreadableImage):
                raise row
            rows.append(row)
        return torch.stack(rows) if rows else torch.empty(0, self.config.classes or self.config.pooled_width)


def _as_iterable(source: Source | Iterable[Source]) -> Iterable[Source]:
    if isinstance(source, SOURCES) or not isinstance(source, Iterable):
        return [source]
    return source


def as_model(load: Callable[P, Checkpoint]) -> Callable[P, Model]:
    """The same `load`, which gives a `Model` instead of a `Checkpoint`."""

    @functools.wraps(load)
    def loaded(*positional: P.args, **named: P.kwargs) -> Model:
        checkpoint = load(*positional, **named)
        fields = [field.name for field in dataclasses.fields(checkpoint) if field.init]
        model = Model(**{name: getattr(checkpoint, name) for name in fields})
        model.path = checkpoint.path
        return model

    return loaded


load = as_model(load_checkpoint)
