"""Mixup and cutmix: each image of a batch takes a part of its neighbour, and the labels follow.

Neighbours 2i and 2i + 1 mix with each other (the order of a batch is random anyway), so any even part of a batch can be
mixed by itself, with the same result: one process or several, at once or in parts.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from vitrail.data.loading.rng import step_seed
from vitrail.tasks.task import Mix


def mix(
    images: Tensor, mixup: float, cutmix: float, seed: int, step: int, share: tuple[int, int] = (0, 1)
) -> tuple[Tensor, Mix | None]:
    """(B, C, H, W) mixed, with what was done. `mixup` and `cutmix` are alphas, 0 is off; with both, a pair has either
    with equal chance. `share` (rank, of how many): which part of the step's whole batch these images are."""
    if mixup <= 0 and cutmix <= 0:
        return images, None
    batch, rank = len(images), share[0]
    pairs = batch // 2 * share[1]
    random = np.random.default_rng(step_seed(seed, step))
    cuts = random.random(pairs) < (0.0 if cutmix <= 0 else 1.0 if mixup <= 0 else 0.5)
    ratio = np.where(cuts, random.beta(cutmix or 1, cutmix or 1, pairs), random.beta(mixup or 1, mixup or 1, pairs))
    corners = random.random((pairs, 2))
    mine = slice(rank * (batch // 2), (rank + 1) * (batch // 2))
    partner = torch.arange(batch) ^ 1
    if batch % 2:
        partner[-1] = batch - 1  # the last one of an odd batch has no neighbour and stays whole
    weight = _weights(images, cuts[mine], ratio[mine], corners[mine])  # (B, 1, H, W), 1 where the image is itself
    mixed = images[partner].lerp(images, weight)
    return mixed, Mix(partner, weight.mean(dim=(1, 2, 3)))


def _weights(images: Tensor, cuts: np.ndarray, ratio: np.ndarray, corners: np.ndarray) -> Tensor:
    height, width = images.shape[2:]
    side = np.sqrt(1 - ratio)
    top = corners[:, 0] * (height - side * height)
    left = corners[:, 1] * (width - side * width)
    rows, columns = np.arange(height) + 0.5, np.arange(width) + 0.5
    in_rows = (rows >= top[:, None]) & (rows < (top + side * height)[:, None])  # (pairs, H)
    in_columns = (columns >= left[:, None]) & (columns < (left + side * width)[:, None])
    cut = ~(in_rows[:, :, None] & in_columns[:, None, :])
    weight = np.where(cuts[:, None, None], cut, ratio[:, None, None])  # (pairs, H, W)
    both = torch.from_numpy(weight).to(images.dtype).to(images.device).repeat_interleave(2, dim=0)
    whole = both.new_ones(len(images) - len(both), height, width)
    return torch.cat([both, whole])[:, None]
