"""Familiarity: how near a picture lies to those that a model learnt from, in the vectors that its head reads.

The model file keeps vectors of training pictures, and how far held-out pictures lie from them. The distance is that of
Mahalanobis, of vectors of length 1, with the mean and the covariance of those that are kept: a deviation counts by how
much training pictures vary in its direction (Lee et al. 2018; it needs no labels, and was measured against nearest
neighbours and others in benchmarks/results/familiarity.md). The familiarity of a picture is the share of held-out
pictures that lie at least as far, counted with the picture itself: the p-value of conformal prediction. So a picture of
the same kind as those of the run is below 0.05 once in twenty, whatever the network.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor
from torch.nn import functional as F

from vitrail.errors import VitrailError
from vitrail.weights.familiarity.kept_vectors import LEAST_HELD_OUT, KeptVectors

MOST_BYTES = 700_000  # of the vectors, in float16: 1,822 of a Ti
LEAST_TRAINING = 20  # pictures: fewer do not vary in enough directions


def most_vectors(width: int) -> int:
    """How many vectors of this width a model file keeps."""
    return max(LEAST_TRAINING, MOST_BYTES // (2 * width))


@dataclass(frozen=True, eq=False)
class Familiarity:
    """What a model file keeps of the pictures of its run, and the score of new ones."""

    vectors: Tensor  # (M, D), float16, each of length 1
    held_out: Tensor  # (H,), float32, ascending: the distance of each held-out picture to these

    @property
    def width(self) -> int:
        """D."""
        return self.vectors.shape[1]

    @cached_property
    def kept(self) -> KeptVectors:
        """The same as arrays, which do the arithmetic: a start without torch has nothing else."""
        return KeptVectors(self.vectors.numpy(), self.held_out.numpy())

    def distances(self, pooled: Tensor) -> Tensor:
        """What the head reads of each picture, (B, D) -> its distance (B,), about sqrt(D) for training pictures."""
        return torch.from_numpy(self.kept.distances(pooled.detach().float().cpu().numpy()))

    def scores(self, pooled: Tensor) -> Tensor:
        """What the head reads of each picture, (B, D) -> its familiarity (B,): above 0, and 1 at most."""
        return torch.from_numpy(self.kept.scores(pooled.detach().float().cpu().numpy()))


def fit_familiarity(training: Tensor, held_out: Tensor) -> Familiarity | None:
    """From what the head reads of training pictures (M, D) and of held-out ones (H, D), in an order without meaning.

    None where there are too few of them to tell by, or where something is not finite."""
    if len(held_out) < LEAST_HELD_OUT or len(training) < LEAST_TRAINING:
        return None
    if not (training.isfinite().all() and held_out.isfinite().all()):
        return None
    kept = F.normalize(training.float().cpu(), dim=1)[: most_vectors(training.shape[1])].half()
    distances = Familiarity(kept, torch.empty(0)).distances(held_out)
    return Familiarity(kept, distances.sort().values)


def check_width(familiarity: Familiarity, width: int) -> None:
    """Refuse vectors that the network does not give."""
    if familiarity.width != width:
        raise VitrailError(f"its familiarity is of vectors of width {familiarity.width}, the network's have {width}")
