"""A model at work on many images: decoded in threads a little ahead, run in batches, answered in order.

Memory is flat: a few batches of pixels are all that is ever held, whether ten images are asked for or ten million.
"""

from __future__ import annotations

import contextlib
from collections.abc import Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vitrail.data.inputs import frame_of, normalise, prepare
from vitrail.data.unreadable import UnreadableImage
from vitrail.errors import VitrailError
from vitrail.infer.ahead import Pause, ahead, batched
from vitrail.infer.opening import task_of
from vitrail.infer.reading import Source, read_picture, read_source
from vitrail.infer.windows import seen_through_windows
from vitrail.model.precision import autocast
from vitrail.tasks.dense import Dense
from vitrail.tasks.frame import Frame
from vitrail.weights.checkpoint import Checkpoint

TOKENS = 8192  # in a batch that no one chose: 41 images of 224 px in patches of 16, 5 of DINOv2's 518 px
LARGEST = 64  # images in it, where these are small
BATCHES = 3  # in hand: one in the model, the others being decoded

Pixels: TypeAlias = NDArray[np.uint8]


class Ready(NamedTuple):
    """A decoded image. `frame`: where the picture lies in these pixels; None where the answer is about all of it."""

    pixels: Pixels
    frame: Frame | None = None


Numbered: TypeAlias = tuple[int, Source]  # the first is number 1


@dataclass(frozen=True)
class Prediction:
    """What the model says about one source, or why that could not be read."""

    source: Source
    answer: dict[str, Any] | None = None
    error: UnreadableImage | None = None


class Predictor:
    """Answers of a checkpoint. Labels, preprocessing and calibration are those of its file.

    The model moves to the device, and stays there. batch_size None: by the number of tokens. workers: threads that
    decode. device: cuda, mps or cpu; auto is the first of these that is there.
    """

    def __init__(
        self, checkpoint: Checkpoint, *, batch_size: int | None = None, workers: int = 2, device: str = "auto"
    ) -> None:
        if batch_size is not None and batch_size < 1:
            raise VitrailError(f"batch_size is {batch_size}: give at least 1")
        self.checkpoint = checkpoint
        self.preprocessing = checkpoint.preprocessing
        self.windows = checkpoint.config.is_dense and checkpoint.preprocessing.resize == "window"
        self.device = chosen_device(device)
        self.model = checkpoint.model.to(self.device)
        self.batch_size = batch_size or usual_batch(checkpoint)
        self.workers = workers

    def outputs(
        self, sources: Iterable[Source | Pause]
    ) -> Generator[tuple[Source, Tensor | UnreadableImage], None, None]:
        """Each source with the model's outputs (K,), float32, or with the reason why it could not be read. Answers
        about places come decoded, in the picture's own pixels (`Dense.decode`)."""
        for batch in self._read(sources):
            yield from self._run(batch)

    def predict(self, sources: Iterable[Source | Pause], top: int = 5) -> Generator[Prediction, None, None]:
        """Each source with its answer, as the model's task gives it. `top`: how many guesses, where it makes some."""
        task = task_of(self.checkpoint)
        for batch in self._read(sources):
            results = self._run(batch)
            readable = [result for _, result in results if isinstance(result, Tensor)]
            outputs = readable if isinstance(task, Dense) or not readable else torch.stack(readable)
            answers = iter(task.answer(outputs, top) if readable else ())  # type: ignore[arg-type]
            for source, result in results:
                if isinstance(result, Tensor):
                    yield Prediction(source, answer=next(answers))
                else:
                    yield Prediction(source, error=result)

    def _read(self, sources: Iterable[Source | Pause]) -> Iterator[list[tuple[Numbered, Ready | UnreadableImage]]]:
        """Batches of decoded images, the unreadable ones in their places."""
        decoded = ahead(self._decoded, numbered(sources), self.workers, BATCHES * self.batch_size)
        with contextlib.closing(decoded):  # its threads end with it
            yield from batched(decoded, self.batch_size)

    def _decoded(self, numbered: Numbered) -> Ready | UnreadableImage:
        number, source = numbered
        try:
            return self._ready(source, f"image number {number}")
        except UnreadableImage as error:
            return error

    def _ready(self, source: Source, name: str) -> Ready:
        how = self.preprocessing
        if not self.checkpoint.config.is_dense:
            return Ready(read_source(source, how, name))
        picture = read_picture(source, how.channels, name)
        own = picture.shape[0], picture.shape[1]
        return Ready(picture, Frame.whole(own)) if self.windows else Ready(prepare(picture, how), frame_of(own, how))

    def _run(
        self, batch: list[tuple[Numbered, Ready | UnreadableImage]]
    ) -> list[tuple[Source, Tensor | UnreadableImage]]:
        ready = [image for _, image in batch if isinstance(image, Ready)]
        outputs = iter(self._outputs(ready) if ready else ())
        return [(source, next(outputs) if isinstance(image, Ready) else image) for (_, source), image in batch]

    def _outputs(self, ready: Sequence[Ready]) -> Iterable[Tensor]:
        if self.windows:
            return [self._through_windows(image.pixels) for image in ready]
        outputs = self._forward([image.pixels for image in ready])
        frames = [image.frame for image in ready if image.frame is not None]
        if not frames:
            return outputs
        task = task_of(self.checkpoint)
        assert isinstance(task, Dense)
        return task.decode(outputs, frames)

    def _through_windows(self, picture: Pixels) -> Tensor:
        """The answer about a picture of any size, at its own scale."""
        task, how = task_of(self.checkpoint), self.preprocessing
        assert isinstance(task, Dense)
        normal = normalise(torch.from_numpy(picture)[None], how)[0]
        patch = self.checkpoint.config.patch_size
        outputs, frame = seen_through_windows(self._inferred, normal, how.size, patch, self.batch_size)
        return task.decode(outputs[None], [frame])[0]

    def _forward(self, images: list[Pixels]) -> Tensor:
        """uint8 (h, w, C) each -> (B, K) on the CPU."""
        device = next(self.model.parameters()).device
        return self._inferred(normalise(torch.from_numpy(np.stack(images)).to(device), self.preprocessing))

    @torch.inference_mode()
    def _inferred(self, images: Tensor) -> Tensor:
        """(B, C, h, w), normalised -> the outputs on the CPU."""
        weight = next(self.model.parameters())
        with autocast(weight.device):
            outputs = self.model.eval()(images.to(weight.device, weight.dtype))
        return outputs.float().cpu()


def chosen_device(name: str) -> torch.device:
    """The device of that name, once it is certain that it is there."""
    there = {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available(), "cpu": True}
    if name == "auto":
        return torch.device(next(kind for kind, is_there in there.items() if is_there))
    try:
        device = torch.device(name)
    except RuntimeError:
        raise VitrailError(f"the device is {name!r}; choose one of auto, {', '.join(there)}") from None
    if not there.get(device.type, False):
        raise VitrailError(f"there is no device {name!r} on this machine: choose auto or cpu")
    return device


def usual_batch(checkpoint: Checkpoint) -> int:
    """Enough images to keep the processor busy, few enough that their activations fit."""
    (height, width), patch = checkpoint.preprocessing.size, checkpoint.config.patch_size
    tokens = (height // patch[0]) * (width // patch[1]) + checkpoint.config.prefix
    return min(LARGEST, max(1, TOKENS // tokens))


def numbered(sources: Iterable[Source | Pause]) -> Iterator[Numbered | Pause]:
    number = 0
    for source in sources:
        if isinstance(source, Pause):
            yield source
        else:
            number += 1
            yield number, source


def name_of(source: Source) -> str:
    """What a row calls its image: the path as it was given."""
    return str(source) if isinstance(source, str | Path) else "the image"
