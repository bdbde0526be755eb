"""Batches for training: images of the next steps are read from the cache while the model computes.

torch's DataLoader runs workers as processes, which would each hold a cache or decode again; here the cache is one array
that a thread reads, and a whole batch is augmented at once.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Generator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vitrail.data.loading.augment import Augmentation, augment
from vitrail.data.loading.cache import ImageCache
from vitrail.data.loading.mixup import mix
from vitrail.data.loading.rng import image_keys
from vitrail.data.loading.sampler import BatchIndices, Sampler
from vitrail.errors import VitrailError
from vitrail.images.unreadable import UnreadableImage
from vitrail.tasks.targets import Targets
from vitrail.tasks.task import Mix
from vitrail.weights.preprocessing import Preprocessing

PREFETCH = 3  # steps whose images are read ahead


@dataclass(frozen=True)
class Batch:
    """What a step trains on, on one process."""

    step: int
    images: Tensor  # (B, C, H, W), normalised
    targets: Tensor  # (B, ...) after augmentation
    indices: NDArray[np.int64]  # (B,) into the list of training images
    mix: Mix | None
    keys: Tensor  # (B,) int32: what the network draws for each image in training follows from it
    unlabelled: Tensor | None = None  # (U, C, H, W), normalised: pictures without labels, see unlabelled_loader.py
    unlabelled_keys: Tensor | None = None  # (U,) int32


class RawBatch(NamedTuple):
    """The images of a step before augmentation, with their targets."""

    pixels: Tensor  # uint8 (B, H, W, C)
    sizes: NDArray[np.int64]  # (B, 2) their own heights and widths
    targets: Any


@dataclass(frozen=True, kw_only=True)
class Loader:
    """Batches of training images by step number: drawn, read ahead, augmented and mixed."""

    cache: ImageCache
    targets: Targets
    sampler: Sampler
    preprocessing: Preprocessing
    augmentation: Augmentation
    mixup: float = 0.0
    cutmix: float = 0.0
    seed: int = 0
    share: tuple[int, int] = (0, 1)  # (rank, world size): each process has its part of every batch
    workers: int = 2

    def batches(self, first: int, last: int) -> Generator[Batch]:
        """The batches of the steps first to last - 1."""
        if self.workers == 0:
            for step in range(first, last):
                drawn = self.batch_indices(step)
                yield self.make_batch(step, drawn, self._read(drawn))
            return
        pool = ThreadPoolExecutor(1, thread_name_prefix="vitrail-loader")
        pending: deque[tuple[int, BatchIndices, Future[RawBatch]]] = deque()
        try:
            for step in range(first, last + PREFETCH):
                if step < last:
                    drawn = self.batch_indices(step)
                    pending.append((step, drawn, pool.submit(self._read, drawn)))
                if step >= first + PREFETCH or step >= last:
                    if not pending:
                        break
                    ready, drawn, raw = pending.popleft()
                    yield self.make_batch(ready, drawn, raw.result())
        finally:
            pool.shutdown(wait=True, cancel_futures=True)

    def batch_indices(self, step: int) -> BatchIndices:
        """This process's part of a step's images."""
        rank, world = self.share
        batch, size = self.sampler.of_step(step), self.sampler.batch_size
        part = slice(rank * size // world, (rank + 1) * size // world)
        return BatchIndices(batch.epoch, batch.indices[part], batch.keys[part])

    def image_keys(self, step: int) -> Tensor:
        """(B,) int32, of this process's part of a step's images."""
        rank, world = self.share
        size = self.sampler.batch_size
        places = np.arange(rank * size // world, (rank + 1) * size // world)
        return torch.from_numpy(image_keys(self.seed, step, places))

    def _read(self, drawn: BatchIndices) -> RawBatch:
        try:
            return RawBatch(*self.cache.take(drawn.indices), self.targets.take(drawn.indices))
        except UnreadableImage as error:
            raise VitrailError(f"{error}: it was readable when the run began; mend it or take it out") from None

    # In the training thread, not ahead: on a CPU the threads of augmentation and of the model would slow each other.
    def make_batch(self, step: int, drawn: BatchIndices, raw: RawBatch) -> Batch:
        """What the step trains on, from the images that were read for it."""
        prep = self.preprocessing
        images, maps = augment(
            raw.pixels, raw.sizes, prep, self.augmentation, seed=self.seed, epoch=drawn.epoch, indices=drawn.keys
        )
        targets = self.targets.moved(raw.targets, maps, prep.size)
        mean, std = (torch.tensor(values).view(1, -1, 1, 1) for values in (prep.mean, prep.std))
        images = images.sub_(mean).div_(std)
        images, mixed = mix(images, self.mixup, self.cutmix, self.seed, step, self.share)
        return Batch(step, images, targets, drawn.indices, mixed, self.image_keys(step))
