"""Evaluation while training: the held-out images, read and run by the same engine as in `predict`."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from vitrail.data.checks.perceptual_hash import Signature, signature_of
from vitrail.data.loading.transforms import letterbox_of
from vitrail.errors import VitrailError
from vitrail.images.stored_image import StoredImage
from vitrail.images.unreadable import UnreadableImage
from vitrail.inference.backends.torch_backend import TorchBackend
from vitrail.inference.engine import Engine
from vitrail.inference.evaluation import MEASURED_IN
from vitrail.inference.image_processor import ImageProcessor, ModelInput
from vitrail.model.encoder import Encoder
from vitrail.tasks.dense_task import DenseTask
from vitrail.tasks.letterbox import Letterbox
from vitrail.tasks.targets import DenseTargets, maps_of
from vitrail.threads import in_threads
from vitrail.training.distributed import Processes
from vitrail.weights.checkpoint import Checkpoint

BATCH = 128  # images, where they are small
PIXELS = BATCH * 128 * 128  # of a batch, where they are large
IN_MEMORY = 1e9  # bytes of decoded images that are cached


class HeldOutImages:
    """The images of a validation or test part, decoded once where they fit into memory."""

    def __init__(self, sources: Sequence[Path | StoredImage], processor: ImageProcessor, workers: int) -> None:
        self.sources, self.processor, self.workers = sources, processor, max(1, workers)
        pixels = processor.preprocessing.size[0] * processor.preprocessing.size[1]
        room = int(IN_MEMORY // (pixels * processor.preprocessing.channels))
        self.room = 0 if processor.windows else room  # what goes through windows has whatever size it has
        self._cache: dict[int, ModelInput] = {}
        self._kept: frozenset[int] = frozenset()
        self._signatures: dict[int, Signature] = {}
        self.batch_size = max(1, min(BATCH, PIXELS // pixels))

    def __len__(self) -> int:
        return len(self.sources)

    def take(self, indices: Sequence[int]) -> list[ModelInput]:
        """The images with these indices; a file that can no longer be read ends the run with a sentence."""
        missing = [index for index in indices if index not in self._cache]
        images = dict(zip(missing, in_threads(self._read, missing, self.workers), strict=True))
        if len(self) <= self.room:
            self._cache |= images
        elif self._kept:
            self._cache |= {index: image for index, image in images.items() if index in self._kept}
        return [self._cache[index] if index in self._cache else images[index] for index in indices]

    def keep(self, indices: Sequence[int]) -> None:
        """Cache these from now on where not all fit: an evaluation on the way takes the same again and again, and the
        fewer images of a Parquet file are wanted, the more is read for each."""
        self._kept = frozenset(indices if len(indices) <= self.room else ())

    def look(self) -> dict[int, UnreadableImage]:
        """Decode everything once, caching what fits: broken files are known before a long run begins."""
        broken: dict[int, UnreadableImage] = {}

        def read(index: int) -> None:
            try:
                image = self._decode(index)
            except UnreadableImage as error:
                broken[index] = error
            else:
                if len(self) <= self.room:
                    self._cache[index] = image

        in_threads(read, range(len(self)), self.workers)
        return dict(sorted(broken.items()))

    def signatures(self, indices: Sequence[int]) -> list[Signature]:
        """What these images look like, known from when they were read last."""
        for index in indices:
            if index not in self._signatures:
                self._read(index)
        return [self._signatures[index] for index in indices]

    def _decode(self, index: int) -> ModelInput:
        image = self.processor.read(self.sources[index])
        self._signatures[index] = signature_of(image.pixels)
        return image

    def _read(self, index: int) -> ModelInput:
        try:
            return self._decode(index)
        except UnreadableImage as error:
            raise VitrailError(f"{error}: it was readable when the run began; mend it or take it out") from None


def outputs_of(
    network: nn.Module,
    images: HeldOutImages,
    indices: Sequence[int],
    processes: Processes,
    precision: str = MEASURED_IN,
    pooled: list[Tensor] | None = None,
) -> Tensor:
    """(len(indices), outputs) in float32 on the CPU; each process runs its share.

    pooled: is given what the head reads of each image, (D,)."""
    rows: list[Tensor] = []
    vectors: list[Tensor] = []
    with evaluation_engine(network, images, precision=precision) as engine:
        for batch, count in share_of(indices, images.batch_size, processes):
            kept: list[Tensor] | None = None if pooled is None else []
            rows += engine.outputs(images.take(batch), pooled=kept)[:count]
            vectors += (kept or [])[:count]
    _gather_vectors(vectors, pooled, engine, processes)
    outputs = torch.stack(rows) if rows else torch.empty(0, engine.checkpoint.config.classes)
    return processes.gather(outputs)


def pooled_features(
    network: nn.Module, images: HeldOutImages, indices: Sequence[int], seconds: float, precision: str, least: int = 1
) -> Tensor:
    """(M, D): what the head reads of the first M of these images, as many as so many seconds suffice for, but at least
    so many."""
    ends = time.monotonic() + seconds
    features: list[Tensor] = []
    with evaluation_engine(network, images, precision=precision) as engine:
        for start in range(0, len(indices), images.batch_size):
            for _ in engine.run(images.take(indices[start : start + images.batch_size]), features):
                pass
            if time.monotonic() > ends and len(features) >= least:
                break
    return torch.stack(features) if features else torch.empty(0, engine.checkpoint.config.pooled_width)


def _gather_vectors(vectors: list[Tensor], pooled: list[Tensor] | None, engine: Engine, processes: Processes) -> None:
    """Give `pooled` the vectors of all processes."""
    if pooled is not None:
        own = torch.stack(vectors) if vectors else torch.empty(0, engine.checkpoint.config.pooled_width)
        pooled += processes.gather(own)


class HeldOutTargets(NamedTuple):
    """The images that are measured, and what is true of them."""

    targets: DenseTargets
    indices: Sequence[int]


def compare_with_targets(
    network: nn.Module,
    task: DenseTask,
    images: HeldOutImages,
    truth: HeldOutTargets,
    processes: Processes,
    precision: str = MEASURED_IN,
    pooled: list[Tensor] | None = None,
) -> tuple[Tensor, float]:
    """What the metrics need of each image's answer and its target, (len(indices), S), and the mean loss.

    They are compared in the picture's own pixels. Each process runs its share. pooled: see `outputs_of`.
    """
    targets, indices = truth
    rows: list[Tensor] = []
    losses: list[Tensor] = []
    vectors: list[Tensor] = []
    with evaluation_engine(network, images, task, precision) as engine:
        for batch, count in share_of(indices, images.batch_size, processes):
            kept: list[Tensor] | None = None if pooled is None else []
            loss, decoded = _loss_and_answers(engine, task, images.take(batch), HeldOutTargets(targets, batch), kept)
            vectors += (kept or [])[:count]
            answers = zip(decoded[:count], batch, strict=False)
            rows += [task.compare(answer, targets.own(index)) for answer, index in answers]
            losses += [loss] * count
    _gather_vectors(vectors, pooled, engine, processes)
    compared = processes.gather(torch.stack(rows).double().to(processes.device)).cpu()
    return compared, float(processes.gather(torch.stack(losses).to(processes.device)).mean())


@contextlib.contextmanager
def evaluation_engine(
    network: nn.Module, images: HeldOutImages, task: DenseTask | None = None, precision: str = MEASURED_IN
) -> Iterator[Engine]:
    """An engine around a network that goes on training afterwards; DDP may wrap it."""
    model = network if isinstance(network, Encoder) else network.module
    assert isinstance(model, Encoder)
    checkpoint = Checkpoint(model, images.processor.preprocessing)
    backend = TorchBackend(network, precision, autograd="no_grad")
    was_training = network.training
    try:
        with torch.no_grad():
            yield Engine(checkpoint, backend, task=task, batch_size=images.batch_size)
    finally:
        network.train(was_training)


def share_of(indices: Sequence[int], size: int, processes: Processes) -> Iterator[tuple[list[int], int]]:
    """This process's batches, and how many images of each count.

    Every process runs equally often, because DDP and FSDP wait for each other: a process whose share is done runs the
    first image again, which then does not count.
    """
    shares = np.array_split(np.asarray(indices), processes.world)
    own = shares[processes.rank].tolist()
    for start in range(0, len(shares[0]), size):  # the first share is the longest
        batch = own[start : start + size]
        yield batch or [int(indices[0])], len(batch)


def _loss_and_answers(
    engine: Engine, task: DenseTask, images: list[ModelInput], truth: HeldOutTargets, pooled: list[Tensor] | None
) -> tuple[Tensor, list[Tensor]]:
    """The mean loss of a batch, and what is decoded from its outputs. pooled: see `outputs_of`."""
    targets, batch = truth
    losses: list[Tensor] = []
    decoded: list[Tensor] = []
    start = 0
    for outputs, letterboxes in engine.run(images, pooled):
        indices = batch[start : start + len(outputs)]
        start += len(outputs)
        if engine.processor.windows:
            target = _padded_target(task, targets.own(indices[0]), letterboxes[0])
        else:
            preprocessing = engine.processor.preprocessing
            letterboxes = [letterbox_of(targets.size(index), preprocessing) for index in indices]
            target = targets.moved(targets.take(np.asarray(indices)), maps_of(letterboxes), preprocessing.size)
        losses.append(task.loss(outputs, target.to(outputs.device)))
        decoded += engine.decode(outputs, letterboxes)
    return torch.stack(losses).mean(), decoded


def _padded_target(task: DenseTask, target: Tensor, letterbox: Letterbox) -> Tensor:
    """(1, H', W') of a picture that went through windows: its target (H, W), and beyond its edges nothing is known."""
    padded = torch.full(letterbox.input, task.unknown)
    padded[: target.shape[0], : target.shape[1]] = target
    return padded[None]
