"""Which images a training step sees: a function of (seed, step), so a resumed run sees what it would have seen."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from vitrail.data.randomness import permutation, uniform


@dataclass(frozen=True)
class Drawn:
    """The images of one step."""

    epoch: int
    places: NDArray[np.int64]  # into the list of training images
    keys: NDArray[np.int64]  # what their augmentation depends on: an image drawn twice in an epoch has two


class Order:
    """Epochs of whole batches: each visits every image once in a new order, but for a rest smaller than a batch.

    `classes`, the class of each image, makes every class as frequent as every other: an epoch then draws each batch
    place's class first, and goes through the images of a class in turn.
    """

    def __init__(self, count: int, batch: int, seed: int, classes: Sequence[int] | None = None) -> None:
        self.count, self.batch, self.seed = count, batch, seed
        self.steps_per_epoch = count // batch
        self.classes = None if classes is None else np.asarray(classes)
        self._epoch: tuple[int, NDArray[np.int64], NDArray[np.int64]] | None = None

    def of_step(self, step: int) -> Drawn:
        epoch, within = divmod(step, self.steps_per_epoch)
        if self._epoch is None or self._epoch[0] != epoch:
            self._epoch = (epoch, *self._ordered(epoch))
        part = slice(within * self.batch, (within + 1) * self.batch)
        return Drawn(epoch, self._epoch[1][part], self._epoch[2][part])

    def _ordered(self, epoch: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        order = permutation(self.seed, epoch, self.count)
        return (order, order) if self.classes is None else self._balanced(order, epoch)

    def _balanced(self, order: NDArray[np.int64], epoch: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        assert self.classes is not None
        draws = uniform(self.seed, epoch, np.arange(self.count), 1, "balance")[:, 0]
        members = [order[self.classes[order] == number] for number in np.unique(self.classes)]
        drawn = (draws * len(members)).astype(np.int64)
        places, turns = np.empty(self.count, np.int64), np.empty(self.count, np.int64)
        for number, images in enumerate(members):
            here = np.flatnonzero(drawn == number)
            places[here] = images[np.arange(len(here)) % len(images)]
            turns[here] = np.arange(len(here)) // len(images)
        return places, places + self.count * turns
