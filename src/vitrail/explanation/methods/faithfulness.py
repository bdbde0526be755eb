"""Which explanation to trust: hide the patches it calls important and watch the answer (Petsiuk et al., 2018).

Deletion: from the whole picture, the most important patches go first; a good explanation makes the answer fall fast,
so the area under the curve is small. Insertion: into a blank picture they come first; the answer rises fast and the
area is large. `score` is insertion minus deletion: 0 is about what a random order gets, 1 would be perfect.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vitrail.explanation.methods.occlusion import BATCH, outputs_hidden
from vitrail.explanation.target_score import PROBABILITIES, TargetScore
from vitrail.model.encoder import Encoder

STEPS = 20
ORDERS = 5  # random ones, averaged: what an explanation that knows nothing gets


@dataclass(frozen=True)
class Curves:
    """The answer's value after each share of the patches has been hidden, or shown."""

    shares: NDArray[np.float64]  # (S + 1,), 0 to 1
    deletion: NDArray[np.float64]  # (S + 1,)
    insertion: NDArray[np.float64]

    @property
    def deletion_area(self) -> float:
        return area(self.shares, self.deletion)

    @property
    def insertion_area(self) -> float:
        return area(self.shares, self.insertion)

    @property
    def score(self) -> float:
        return self.insertion_area - self.deletion_area


def area(shares: NDArray[np.float64], values: NDArray[np.float64]) -> float:
    """The area under the curve, by the trapezoidal rule."""
    return float(((values[1:] + values[:-1]) / 2 * np.diff(shares)).sum())


def curves(
    model: Encoder,
    image: Tensor,
    ranking: Tensor,
    target: TargetScore,
    *,
    number: int = 0,
    steps: int = STEPS,
    batch: int = BATCH,
) -> Curves:
    """Of one image (C, H, W) and its map (h, w), larger is more important; `number`: the image's in `target`."""
    patches = ranking.numel()
    counts = torch.linspace(0, patches, min(steps, patches) + 1).round().long()
    rank = torch.empty(patches, dtype=torch.long)
    rank[ranking.flatten().float().cpu().argsort(descending=True, stable=True)] = torch.arange(patches)
    hidden = (rank < counts[:, None]).unflatten(1, tuple(ranking.shape))  # (S + 1, h, w)
    outputs = outputs_hidden(model, image, torch.cat([hidden, ~hidden]), batch)
    values = target.for_versions(number, len(outputs)).value(outputs).double().cpu().numpy()
    if target.link not in PROBABILITIES:
        values = normalise_between(values, whole=values[0], empty=values[len(counts) - 1])
    shares = (counts / patches).double().numpy()
    return Curves(shares, values[: len(counts)], values[len(counts) :])


def normalise_between(values: NDArray[np.float64], whole: float, empty: float) -> NDArray[np.float64]:
    """Numbers of any unit as shares of the way from the blank picture's (0) to the whole picture's (1)."""
    return (values - empty) / (whole - empty) if abs(whole - empty) > 1e-12 else np.zeros_like(values)


def compare(
    model: Encoder, image: Tensor, maps: Mapping[str, Tensor], target: TargetScore, *, number: int = 0, seed: int = 0
) -> dict[str, Curves]:
    """The curves of each map, and of a random order as the floor, under 'random'."""
    of_maps = {name: curves(model, image, ranking, target, number=number) for name, ranking in maps.items()}
    generator = torch.Generator().manual_seed(seed)
    grid = next(iter(maps.values())).shape
    orders = [torch.randperm(grid.numel(), generator=generator).view(grid) for _ in range(ORDERS)]
    return {**of_maps, "random": average([curves(model, image, order, target, number=number) for order in orders])}


def average(all_curves: list[Curves]) -> Curves:
    """Point by point; of images with different grids the points are those of the first."""
    shares = all_curves[0].shares
    deletion = [np.interp(shares, curves.shares, curves.deletion) for curves in all_curves]
    insertion = [np.interp(shares, curves.shares, curves.insertion) for curves in all_curves]
    return Curves(shares, np.mean(deletion, axis=0), np.mean(insertion, axis=0))


def best_of(curves: Mapping[str, Curves]) -> str | None:
    """The name of the explanation with the highest score; None where none beats a random order."""
    floor = curves["random"].score if "random" in curves else -np.inf
    scores = {name: curve.score for name, curve in curves.items() if name != "random" and curve.score > floor}
    return max(scores, key=lambda name: scores[name]) if scores else None
