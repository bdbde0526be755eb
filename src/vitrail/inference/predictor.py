"""Answers for many images: decoded in threads a little ahead, run in batches, given in order.

Memory is flat: a few batches of pixels are all that is held at a time, for ten images as for ten million.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Generator, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias, Unpack, cast

from vitrail.images.unreadable import UnreadableImage
from vitrail.inference.image_processor import ModelInput
from vitrail.inference.prefetch import Pause, batched, prefetch
from vitrail.inference.read_source import Source
from vitrail.inference.read_source import name_of as name_of  # who writes rows names them as errors do
from vitrail.inference.running_options import AnsweringOptions
from vitrail.options import takes_options
from vitrail.threads import usable_cores

if TYPE_CHECKING:  # a start with a kept graph does without torch
    from torch import Tensor

    from vitrail.inference.cached_start.cached_engine import CachedEngine
    from vitrail.inference.engine import Engine
    from vitrail.weights.checkpoint import Checkpoint

BATCHES = 3  # in memory: one in the model, the others being decoded

Numbered: TypeAlias = tuple[int, Source]  # the first is number 1
Look: TypeAlias = Callable[[int, ModelInput], None]
ReadBatch: TypeAlias = list[tuple[Numbered, ModelInput | UnreadableImage]]


@dataclass(frozen=True)
class Prediction:
    """What the model says about one source, or why that could not be read."""

    source: Source
    answer: dict[str, Any] | None = None
    error: UnreadableImage | None = None
    clipped: bool = False  # whether some of its values were above the model's bit depth
    precision: str = "float32"  # what it was computed in


class Predictor:
    """Answers of a model to any number of images, in their order.

    checkpoint: or whatever else `Engine.open` takes, as it takes engine, device, precision, batch_size,
    calibration and merge_tokens.
    """

    @takes_options(AnsweringOptions)
    def __init__(self, checkpoint: str | Path | Checkpoint | Engine, **options: Unpack[AnsweringOptions]) -> None:
        from vitrail.inference.engine import Engine

        self.engine = Engine.open(
            checkpoint,
            engine=options["engine"],
            device=options["device"],
            precision=options["precision"],
            batch_size=options["batch_size"],
            calibration=options["calibration"],
            merge_tokens=options["merge_tokens"],
        )
        if options["fast_decode"]:
            self.engine = self.engine.with_fast_decode()
        self.workers = options["workers"] or usual_workers(self.engine)

    @classmethod
    def of_cached(cls, engine: CachedEngine, workers: int | None) -> Predictor:
        """One whose model was not loaded: `predict` is all that it can do."""
        predictor = cls.__new__(cls)
        predictor.engine, predictor.workers = cast("Engine", engine), workers or usable_cores()
        return predictor

    @property
    def checkpoint(self) -> Checkpoint:
        """The model."""
        return self.engine.checkpoint

    def outputs(
        self,
        sources: Iterable[Source | Pause],
        look: Look | None = None,
        decode: bool = True,
        pooled: list[Tensor] | None = None,
    ) -> Generator[tuple[Source, Tensor | UnreadableImage], None, None]:
        """Each source with the model's outputs (K,), float32, or with the reason why it could not be read. Outputs of
        dense tasks come decoded, in the picture's own pixels (`DenseTask.decode`), or as the model gives them.

        look: is shown each image that was read, with its place among the sources, in the threads that read.
        pooled: is given the vector of each image that could be read, where the model's file tells what is familiar."""
        for batch in self._read(sources, look):
            yield from self._run(batch, decode, pooled)

    def predict(
        self, sources: Iterable[Source | Pause], top: int = 5, *, unknown: bool = False
    ) -> Generator[Prediction, None, None]:
        """Each source with its answer, as the model's task gives it. `top`: how many guesses, where it makes some.

        Where the model's file tells, an answer has `familiarity` and `familiar`. unknown: the answer to what is not
        familiar is "unknown"."""
        self.engine.task  # noqa: B018  a model without answers is refused before anything is read
        if unknown:
            self.engine.check_unknown()
        precision = self.engine.backend.precision
        for batch in self._read(sources):
            pooled: list[Tensor] = []
            results = self._run(batch, pooled=pooled)
            rows = [row for _, row in results if not isinstance(row, UnreadableImage)]
            answers = iter(self.engine.answer(rows, top, pooled, unknown))
            for (source, result), (_, image) in zip(results, batch, strict=True):
                if isinstance(result, UnreadableImage):
                    yield Prediction(source, error=result)
                else:
                    clipped = isinstance(image, ModelInput) and image.clipped > 0
                    yield Prediction(source, answer=next(answers), clipped=clipped, precision=precision)

    def _read(self, sources: Iterable[Source | Pause], look: Look | None = None) -> Iterator[ReadBatch]:
        """Batches of decoded images, the unreadable ones in their places."""
        size = self.engine.batch_size
        images = prefetch(partial(self._read_one, look), numbered(sources), self.workers, BATCHES * size)
        with contextlib.closing(images):  # its threads end with it
            yield from batched(images, size)

    def _read_one(self, look: Look | None, numbered: Numbered) -> ModelInput | UnreadableImage:
        number, source = numbered
        try:
            image = self.engine.read(source, f"image number {number}")
        except UnreadableImage as error:
            return error
        if look is not None:
            look(number - 1, image)
        return image

    def _run(
        self, batch: ReadBatch, decode: bool = True, pooled: list[Tensor] | None = None
    ) -> list[tuple[Source, Tensor | UnreadableImage]]:
        """pooled: is given the vector of each image that could be read, where familiarity is told by it."""
        images = [image for _, image in batch if isinstance(image, ModelInput)]
        pooled = None if self.engine.familiarity is None else pooled
        outputs = iter(self.engine.outputs(images, decode, pooled) if images else ())
        return [(source, next(outputs) if isinstance(image, ModelInput) else image) for (_, source), image in batch]


def usual_workers(engine: Engine) -> int:
    """Threads that decode: one for each of the network's. They use the cores by turns, and where both are as many none
    of the cores is idle while the network waits for its slowest thread (benchmarks/results/pipeline.md)."""
    import torch

    return torch.get_num_threads() if engine.backend.device.type == "cpu" else usable_cores()


def numbered(sources: Iterable[Source | Pause]) -> Iterator[Numbered | Pause]:
    """Each source with its number, from 1; pauses are passed on."""
    number = 0
    for source in sources:
        if isinstance(source, Pause):
            yield source
        else:
            number += 1
            yield number, source
