"""Familiarity: how near a picture lies to those that a model learnt from, in the vectors that its head reads.

The model file keeps vectors of training pictures, and how far held-out pictures lie from them. The distance is that of
Mahalanobis, of vectors of length 1, with the mean and the covariance of those that are kept: a deviation counts by how
much training pictures vary in its direction (Lee et al. 2018; it needs no labels, and was measured against nearest
neighbours and others in benchmarks/results/familiarity.md). The familiarity of a picture is the share of held-out
pictures that lie at least as far, counted with the picture itself: the p-value of conformal prediction. So a picture of
the same kind as those of the run is below 0.05 once in twenty, whatever the network.
"""

from __future__ import annotations

import numpy as np
from torch import Tensor
from torch.nn import functional as F

from vitrail.errors import VitrailError
from vitrail.weights.familiarity.kept_vectors import LEAST_HELD_OUT, KeptVectors

MOST_BYTES = 700_000  # of the vectors, in float16: 1,822 of a Ti
LEAST_TRAINING = 20  # pictures: fewer do not vary in enough directions


def most_vectors(width: int) -> int:
    """How many vectors of this width a model file keeps."""
    return max(LEAST_TRAINING, MOST_BYTES // (2 * width))


def fit_familiarity(training: Tensor, held_out: Tensor) -> KeptVectors | None:
    """From what the head reads of training pictures (M, D) and of held-out ones (H, D), in an order without meaning.

    None where there are too few of them to tell by, or where something is not finite."""
    if len(held_out) < LEAST_HELD_OUT or len(training) < LEAST_TRAINING:
        return None
    if not (training.isfinite().all() and held_out.isfinite().all()):
        return None
    vectors = F.normalize(training.float().cpu(), dim=1)[: most_vectors(training.shape[1])].half().numpy()
    distances = KeptVectors(vectors, np.empty(0, np.float32)).distances(held_out.float().cpu().numpy())
    return KeptVectors(vectors, np.sort(distances))


def check_width(familiarity: KeptVectors, width: int) -> None:
    """Refuse vectors that the network does not give."""
    if familiarity.width != width:
        raise VitrailError(f"its familiarity is of vectors of width {familiarity.width}, the network's have {width}")
