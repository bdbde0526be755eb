"""Depth maps as targets, and what is learnt of them before training."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from vitrail.tasks.shared.pixel_map_targets import PixelMapTargets

NEAREST = 1e-3  # of the largest depth: below it the log depth would rule the loss, so it is taken for this


class DepthSums(NamedTuple):
    """Over the known pixels of one map."""

    pixels: int
    total: float
    largest: float
    log_total: float
    log_squared: float


class DepthTargets(PixelMapTargets):
    """Depths in the unit of the data, 0 where unknown."""

    unknown = 0.0
    target_dtype = torch.float32


def depth_sums(values: NDArray[Any]) -> DepthSums:
    depths = values[values > 0].astype(np.float64)
    if not depths.size:
        return DepthSums(0, 0.0, 0.0, 0.0, 0.0)
    logs = np.log(np.maximum(depths, NEAREST * depths.max()))
    return DepthSums(
        depths.size, float(depths.sum()), float(depths.max()), float(logs.sum()), float(np.square(logs).sum())
    )
