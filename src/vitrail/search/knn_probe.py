"""k-NN on frozen features: what the nearest training images say, each weighted by how near it is.

The weights are those of DINO's evaluation: exp(cosine / 0.07). With classes and labels the weighted mean of the
neighbours' targets is a probability, with numbers it is the answer.
"""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from vitrail.errors import VitrailError
from vitrail.search.nearest_neighbours import Neighbours, Vectors, nearest_neighbours
from vitrail.tasks.task import Task

K = 20  # neighbours: what DINO, DINOv2 and most papers report
KS = (10, 20, 100, 200)  # those that DINO's evaluation prints
TEMPERATURE = 0.07
SUREST = 1e-6  # how near to 0 and 1 a probability comes: a logarithm is taken of it

Means: TypeAlias = NDArray[np.float32]


def knn_means(vectors: Vectors, targets: Means, queries: Vectors, k: int = K) -> Means:
    """What the k nearest of vectors (N, D) say about the queries (M, D): weighted means (M, K) of targets (N, K).

    targets: rows of 0 and 1 for classes and labels (`target_rows`), which gives probabilities, or numbers.
    """
    return vote(nearest_neighbours(queries, vectors, k), targets)


def vote(neighbours: Neighbours, targets: Means, k: int | None = None) -> Means:
    """(M, K): the weighted mean of the targets (N, K) of the first k of the neighbours, None: of all."""
    similarity, index = neighbours.similarity[:, :k], neighbours.index[:, :k]
    if not similarity.shape[1]:
        raise VitrailError("k-NN needs at least one image to compare with")
    weights = torch.softmax(torch.from_numpy(similarity) / TEMPERATURE, dim=1).numpy()  # (M, k)
    means = np.zeros((len(index), targets.shape[1]), np.float32)
    for place in range(index.shape[1]):  # (M, k, K) at once would be large
        means += weights[:, place, None] * targets[index[:, place]]
    return means


def target_rows(encoded: Tensor, task: Task) -> Means:
    """(N, K): what `task.encode` gives, with a row of 0 and 1 for a class number."""
    rows = F.one_hot(encoded, task.outputs) if encoded.dim() == 1 else encoded
    return rows.float().numpy()


def as_outputs(means: Means, task: Task) -> Tensor:
    """(M, K) as a finished model of the task would give them: logits of probabilities, or the numbers themselves."""
    values = torch.from_numpy(means).double()
    if task.link == "softmax":
        return values.clamp(min=SUREST).log()
    return torch.logit(values, eps=SUREST) if task.link == "sigmoid" else values
