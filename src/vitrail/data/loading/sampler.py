"""Which images a training step sees. It is a function of (seed, step), so a resumed run draws the same batches."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from vitrail.data.loading.rng import permutation, uniform


@dataclass(frozen=True)
class BatchIndices:
    """The images of one step."""

    epoch: int
    indices: NDArray[np.int64]  # (B,) into the list of training images
    keys: NDArray[np.int64]  # (B,) seeds of their augmentation: an image that is drawn twice in an epoch has two


class Sampler:
    """Draws whole batches. An epoch visits every image once in a new order; a rest smaller than a batch is dropped.

    `classes` gives the class of each image and turns on balanced sampling: every place of an epoch draws a class first,
    all with the same probability, then takes the next image of that class.
    """

    def __init__(self, count: int, batch_size: int, seed: int, classes: Sequence[int] | None = None) -> None:
        self.count, self.batch_size, self.seed = count, batch_size, seed
        self.steps_per_epoch = count // batch_size
        self.classes = None if classes is None else np.asarray(classes)
        self._epoch: tuple[int, NDArray[np.int64], NDArray[np.int64]] | None = None

    def of_step(self, step: int) -> BatchIndices:
        """The images of one step, counted from 0 over the whole run, and the seeds of their augmentation."""
        epoch, position = divmod(step, self.steps_per_epoch)
        if self._epoch is None or self._epoch[0] != epoch:
            self._epoch = (epoch, *self._draw_epoch(epoch))
        batch = slice(position * self.batch_size, (position + 1) * self.batch_size)
        return BatchIndices(epoch, self._epoch[1][batch], self._epoch[2][batch])

    def _draw_epoch(self, epoch: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Indices and augmentation keys of an epoch, (count,) each."""
        order = permutation(self.seed, epoch, self.count)
        return (order, order) if self.classes is None else self._balance(order, epoch)

    def _balance(self, order: NDArray[np.int64], epoch: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        assert self.classes is not None
        draws = uniform(self.seed, epoch, np.arange(self.count), 1, "balance")[:, 0]
        members = [order[self.classes[order] == number] for number in np.unique(self.classes)]
        drawn_classes = (draws * len(members)).astype(np.int64)
        indices, rounds = np.empty(self.count, np.int64), np.empty(self.count, np.int64)
        for number, images in enumerate(members):
            positions = np.flatnonzero(drawn_classes == number)
            indices[positions] = images[np.arange(len(positions)) % len(images)]
            rounds[positions] = np.arange(len(positions)) // len(images)  # how often the class was gone through before
        return indices, indices + self.count * rounds


def evenly_spaced(count: int, most: int) -> NDArray[np.int64]:
    """Indices of at most so many of `count` images, spread evenly, since datasets are ordered by class."""
    return np.unique(np.linspace(0, count - 1, min(count, most)).astype(np.int64))
