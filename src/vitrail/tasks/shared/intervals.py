"""How far a metric could be off because other images might have been drawn: bootstrap over images, or over groups of
images that are not independent of each other (photos of one object, near copies): these are drawn together.

scipy.stats.bootstrap resamples the values of one statistic; here all metrics share the same draws, as weights, so that
a thousand resamples cost a few matrix products."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch

# A metric is written for weights (images, R): how often each image counts in each of R resamples. It gives (..., R).
# With all weights 1 it is the plain metric, so the two can never differ.
Metrics = Callable[[np.ndarray], dict[str, np.ndarray]]
Groups = Sequence[int]  # the group of each image, any numbers

CELLS = 1 << 18  # weights worked on at a time: 2 MB stay in a core's cache


class Measured(NamedTuple):
    """All metrics by name, and their 95 % intervals. A name with "each " before it has a value for every label."""

    values: dict[str, Any]
    intervals: dict[str, Any]


def measure(
    metrics: Metrics, images: int, resamples: int = 1000, seed: int = 0, groups: Groups | None = None
) -> Measured:
    return Measured(plain(metrics, images), bootstrap(metrics, images, resamples, seed, groups))


def plain(metrics: Metrics, images: int) -> dict[str, Any]:
    """The metrics of the images as they are: a number each, or a list."""
    return {name: values[..., 0].tolist() for name, values in metrics(np.ones((images, 1))).items()}


def bootstrap(
    metrics: Metrics, images: int, resamples: int = 1000, seed: int = 0, groups: Groups | None = None
) -> dict[str, Any]:
    """95 % percentile intervals: [low, high] a number, or a list of these. `groups`: None where images are drawn one by
    one. None are given for 0 resamples, or for one single group, which says nothing about others."""
    group_of = np.arange(images) if groups is None else np.unique(np.asarray(groups), return_inverse=True)[1]
    units = int(group_of.max()) + 1
    if not resamples or (groups is not None and units < 2):
        return {}
    rng = np.random.default_rng(seed)
    step = max(1, CELLS // images)
    parts = [metrics(draw(rng, units, min(step, resamples - done))[group_of]) for done in range(0, resamples, step)]
    samples = {name: np.concatenate([part[name] for part in parts], axis=-1) for name in parts[0]}
    return {
        name: np.moveaxis(np.quantile(values, [0.025, 0.975], axis=-1), 0, -1).tolist()
        for name, values in samples.items()
    }


def draw(rng: np.random.Generator, images: int, resamples: int) -> np.ndarray:
    """(images, resamples): how often each image, or group, is drawn when as many are drawn with replacement."""
    drawn = rng.integers(images, size=(resamples, images))
    cells = drawn * resamples + np.arange(resamples)[:, None]
    return np.bincount(cells.ravel(), minlength=images * resamples).reshape(images, resamples).astype(np.float64)


def sums_by_group(weights: np.ndarray, groups: np.ndarray, count: int) -> np.ndarray:
    """(images, R) -> (count, R): the sum over each group's images. `groups` is one of 0 to count - 1 an image."""
    sums = torch.zeros(count, weights.shape[1], dtype=torch.float64)  # five times as fast as numpy's reduceat
    return sums.index_add_(0, torch.from_numpy(groups), torch.from_numpy(weights)).numpy()


def ratio(part: np.ndarray, whole: np.ndarray) -> np.ndarray:
    """part / whole, and 0 where the whole is 0."""
    return np.divide(part, whole, out=np.zeros(np.broadcast_shapes(part.shape, whole.shape)), where=whole > 0)
