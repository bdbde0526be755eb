"""How well the boxes of two engines agree."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from vitrail.tasks.agreement import MOST_PROBABILITY, Agreement
from vitrail.tasks.detect.box_geometry import iou, pairwise

OVERLAP = 0.9  # from which on two boxes of a class are the same object in the same place


def box_agreement(reference: Sequence[Tensor], others: Sequence[Tensor], threshold: float) -> Agreement:
    """Detections (n, 7) of each picture (see `Detect.decode`): the same are those that both find, in pairs of one class
    that overlap by 0.9; compared are all that one of them finds."""
    same = compared = 0
    largest = 0.0
    for one, other in zip(reference, others, strict=True):
        first, second = (rows[rows[:, 1] >= threshold] for rows in (one, other))
        pairs = _paired(first, second)
        same += len(pairs)
        compared += len(first) + len(second) - len(pairs)
        largest = max([largest, *(abs(float(first[i, 1] - second[j, 1])) for i, j in pairs)])
    return Agreement(same, compared, "objects", largest, "score", MOST_PROBABILITY)


def _paired(first: Tensor, second: Tensor) -> list[tuple[int, int]]:
    """Each with the one that overlaps it most, the best overlaps first; a detection is in one pair at most."""
    overlaps = pairwise(iou, first[:, 2:6], second[:, 2:6]) * (first[:, None, 0] == second[None, :, 0])
    pairs, taken = [], set()
    for place in torch.argsort(overlaps.flatten(), descending=True).tolist():
        i, j = divmod(place, len(second))
        if overlaps[i, j] < OVERLAP:
            break
        if ("first", i) not in taken and ("second", j) not in taken:
            taken |= {("first", i), ("second", j)}
            pairs.append((i, j))
    return pairs
