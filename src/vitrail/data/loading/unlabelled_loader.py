"""Batches of training images with as many pictures of a pile beside them, which have no labels.

Both are drawn by their own sampler, so what a step sees is still a function of (seed, step).
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import closing
from dataclasses import dataclass, replace

from vitrail.data.loading.cache import ImageCache
from vitrail.data.loading.loader import Batch, Loader
from vitrail.data.loading.sampler import Sampler
from vitrail.weights.preprocessing import Preprocessing


@dataclass(frozen=True)
class Pile:
    """Decoded pictures without labels."""

    cache: ImageCache
    count: int
    fingerprint: str  # of the files
    description: str

    def batch_size(self, labelled: int, world: int) -> int:
        """How many of them a step sees beside so many images with labels: as many, where there are so many."""
        return min(labelled, self.count - self.count % world)


@dataclass(frozen=True)
class UnlabelledLoader:
    """In the place of a `Loader`: its batches, each with `unlabelled` images of the pile's."""

    labelled: Loader
    pile: Loader

    @property
    def sampler(self) -> Sampler:
        """Of the images with labels: an epoch is a pass over these."""
        return self.labelled.sampler

    @property
    def preprocessing(self) -> Preprocessing:
        """The same for both."""
        return self.labelled.preprocessing

    def batches(self, first: int, last: int) -> Generator[Batch]:
        """The batches of the steps first to last - 1."""
        with closing(self.labelled.batches(first, last)) as batches, closing(self.pile.batches(first, last)) as others:
            for batch, other in zip(batches, others, strict=True):
                yield replace(batch, unlabelled=other.images, unlabelled_keys=other.keys)
