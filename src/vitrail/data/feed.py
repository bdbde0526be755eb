"""The model never waits: pictures of the next steps are taken from the store while it computes."""

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

from vitrail.data.augment import Augmentation, augment
from vitrail.data.mixing import mix
from vitrail.data.order import Drawn, Order
from vitrail.data.store import Store
from vitrail.data.truths import Truths
from vitrail.data.unreadable import UnreadableImage
from vitrail.errors import VitrailError
from vitrail.tasks.task import Mix
from vitrail.weights.preprocessing import Preprocessing

AHEAD = 3  # steps whose pictures are taken beforehand


@dataclass(frozen=True)
class Batch:
    """What a step trains on, on one process."""

    step: int
    images: Tensor  # (B, C, H, W), normalised
    targets: Tensor  # (B, ...) what is to be learnt, as augmentation left it
    places: NDArray[np.int64]  # (B,) into the list of training images
    mix: Mix | None


class Taken(NamedTuple):
    """The pictures of a step before they are augmented, and what is known of them."""

    pixels: Tensor  # uint8 (B, H, W, C)
    sizes: NDArray[np.int64]  # (B, 2) their own heights and widths
    truth: Any


@dataclass(frozen=True, kw_only=True)
class Feed:
    store: Store
    truths: Truths
    order: Order
    preprocessing: Preprocessing
    augmentation: Augmentation
    mixup: float = 0.0
    cutmix: float = 0.0
    seed: int = 0
    share: tuple[int, int] = (0, 1)  # this process, of how many: each has its part of every batch
    workers: int = 2

    def batches(self, first: int, last: int) -> Generator[Batch]:
        """The batches of the steps first to last - 1."""
        if self.workers == 0:
            for step in range(first, last):
                drawn = self.drawn(step)
                yield self._batch(step, drawn, self._taken(drawn))
            return
        pool = ThreadPoolExecutor(1, thread_name_prefix="vitrail-feed")
        waiting: deque[tuple[int, Drawn, Future]] = deque()
        try:
            for step in range(first, last + AHEAD):
                if step < last:
                    drawn = self.drawn(step)
                    waiting.append((step, drawn, pool.submit(self._taken, drawn)))
                if step >= first + AHEAD or step >= last:
                    if not waiting:
                        break
                    ready, drawn, pictures = waiting.popleft()
                    yield self._batch(ready, drawn, pictures.result())
        finally:
            pool.shutdown(wait=True, cancel_futures=True)

    def drawn(self, step: int) -> Drawn:
        """This process's part of a step's images."""
        rank, world = self.share
        whole = self.order.of_step(step)
        mine = slice(rank * self.order.batch // world, (rank + 1) * self.order.batch // world)
        return Drawn(whole.epoch, whole.places[mine], whole.keys[mine])

    def _taken(self, drawn: Drawn) -> Taken:
        try:
            return Taken(*self.store.take(drawn.places), self.truths.take(drawn.places))
        except UnreadableImage as error:
            raise VitrailError(f"{error}: it was readable when the run began; mend it or take it out") from None

    # Augmented here, not beforehand: on a CPU its threads and the model's would only get into each other's way.
    def _batch(self, step: int, drawn: Drawn, taken: Taken) -> Batch:
        how, seed = self.preprocessing, self.seed
        images, maps = augment(
            taken.pixels, taken.sizes, how.size, how.resize, self.augmentation, seed, drawn.epoch, drawn.keys, how.mean
        )
        targets = self.truths.moved(taken.truth, maps, how.size)
        mean, std = (torch.tensor(values).view(1, -1, 1, 1) for values in (how.mean, how.std))
        images = images.sub_(mean).div_(std)
        images, mixed = mix(images, self.mixup, self.cutmix, self.seed, step, self.share)
        return Batch(step, images, targets, drawn.places, mixed)
