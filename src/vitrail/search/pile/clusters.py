"""Clusters of vectors: spherical k-means, with as many clusters as separate the vectors best.

k-means on vectors of length 1, whose centres have length 1 too: the cluster of a vector is the centre with the largest
cosine. A number of clusters is judged by its silhouette: how much nearer a vector is to its own cluster than to the
next one, measured on a sample. Of the numbers that are about as good as the best, the largest tells most.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from vitrail.errors import VitrailError
from vitrail.search.nearest_neighbours import Vectors, unit_vectors
from vitrail.text import counted

NUMBERS = (2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 16, 20, 24, 28, 32, 40, 48, 56, 64)  # of clusters that are tried
SAMPLE = 20_000  # vectors that the centres are found on
MEASURED = 2_000  # vectors that the silhouette is measured on
STARTS = 4  # of which the best is kept
ROUNDS = 50  # at most
NEARLY = 0.9  # of the best silhouette is about as good
SMALLEST = 5  # images a cluster must have on average for a number of clusters to be tried


@dataclass(frozen=True)
class Clusters:
    """Largest first."""

    number: NDArray[np.int64]  # (N,) the cluster of each vector
    similarity: NDArray[np.float32]  # (N,) cosine with its centre
    silhouettes: dict[int, float]  # by the number of clusters, of those that were tried

    @property
    def count(self) -> int:
        """How many clusters there are."""
        return int(self.number.max()) + 1 if len(self.number) else 0


def find_clusters(vectors: Vectors, count: int | None = None, seed: int = 0) -> Clusters:
    """(N, D) -> the cluster of each. count: how many; None: chosen by the silhouette.

    VitrailError where there are not as many vectors as clusters."""
    unit = unit_vectors(vectors)
    rng = np.random.default_rng(seed)
    sample = unit[torch.from_numpy(np.sort(rng.permutation(len(unit))[:SAMPLE]))]
    if count is not None and count > len(sample):
        raise VitrailError(
            f"{count:,} clusters cannot be made of {counted(len(sample), 'image')}: give a smaller --clusters"
        )
    measured = sample[torch.from_numpy(np.sort(rng.permutation(len(sample))[:MEASURED]))]
    numbers: Sequence[int] = [n for n in NUMBERS if n * SMALLEST <= len(sample)] if count is None else [count]
    found: dict[int, Tensor] = {number: _centres(sample, number, rng) for number in numbers}
    silhouettes = {n: silhouette(measured, (measured @ centres.T).argmax(1)) for n, centres in found.items()}
    if not found:
        return Clusters(np.zeros(len(unit), np.int64), np.ones(len(unit), np.float32), {})
    most = max(silhouettes.values())
    best = found[max(number for number, value in silhouettes.items() if value >= (NEARLY * most if most > 0 else most))]
    similarity, number = (unit @ best.T).max(1)
    return Clusters(_largest_first(number.numpy()), similarity.numpy(), silhouettes)


def silhouette(unit: Tensor, number: Tensor) -> float:
    """The mean over vectors (M, D) of length 1 of (b - a) / max(a, b): a is the mean cosine distance to the others of
    the own cluster, b that to the nearest other cluster. 0 for a vector alone in its cluster."""
    present, number = number.unique(return_inverse=True)
    if len(present) < 2:
        return 0.0
    members = F.one_hot(number).float()  # (M, K)
    sizes = members.sum(0)
    sums = (1 - unit @ unit.T).clamp(min=0) @ members  # (M, K): distances to each cluster, summed
    own = sizes[number]
    inside = sums.gather(1, number[:, None])[:, 0] / (own - 1).clamp(min=1)
    outside = (sums / sizes).scatter(1, number[:, None], torch.inf).amin(1)
    values = torch.where(own > 1, (outside - inside) / torch.maximum(inside, outside).clamp(min=1e-12), 0.0)
    return float(values.mean())


# ---- parts


def _centres(unit: Tensor, count: int, rng: np.random.Generator) -> Tensor:
    """(count, D), the best of several starts."""
    runs = [_lloyd(unit, _spread_out(unit, count, rng)) for _ in range(STARTS)]
    return max(runs, key=lambda run: run[1])[0]


def _spread_out(unit: Tensor, count: int, rng: np.random.Generator) -> Tensor:
    """k-means++: each next centre is drawn by its squared distance to those that are there."""
    chosen = [int(rng.integers(len(unit)))]
    distance = 1 - unit @ unit[chosen[0]]
    for _ in range(count - 1):
        heaped = distance.clamp(min=1e-9).double().cumsum(0)
        chosen.append(int(torch.searchsorted(heaped, float(rng.random()) * heaped[-1]).clamp(max=len(unit) - 1)))
        distance = torch.minimum(distance, 1 - unit @ unit[chosen[-1]])
    return unit[chosen]


def _lloyd(unit: Tensor, centres: Tensor) -> tuple[Tensor, float]:
    """The centres moved until no vector changes its cluster, and the mean cosine with them."""
    number = torch.full((len(unit),), -1)
    for _ in range(ROUNDS):
        similarity, nearest = (unit @ centres.T).max(1)
        if torch.equal(nearest, number):
            break
        number = nearest
        sums = torch.zeros_like(centres).index_add_(0, number, unit)
        empty = torch.bincount(number, minlength=len(centres)) == 0
        if empty.any():  # an empty cluster begins again at the vectors that fit worst
            sums[empty] = unit[similarity.argsort()[: int(empty.sum())]]
        centres = F.normalize(sums, dim=1)
    return centres, float((unit @ centres.T).amax(1).mean())


def _largest_first(number: NDArray[np.int64]) -> NDArray[np.int64]:
    """The same clusters, numbered by their size; empty ones vanish."""
    present, number, sizes = np.unique(number, return_inverse=True, return_counts=True)
    rank = np.empty(len(present), np.int64)
    rank[np.argsort(-sizes, kind="stable")] = np.arange(len(present))
    return rank[number]
