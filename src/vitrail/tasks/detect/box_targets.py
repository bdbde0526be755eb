"""Objects with their boxes as targets. Crowds are no objects: they are neither learnt nor counted."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vitrail.tasks.detect.boxes import Boxes
from vitrail.tasks.targets import TargetScan

VISIBLE = 0.25  # part of a box that must be left in the image, else its object is no longer to be found
NARROW = 1.0  # pixels that a box must have of each side


class BoxTargets:
    """The boxes of each image."""

    def __init__(self, boxes: Sequence[Boxes]) -> None:
        self.boxes = boxes

    def take(self, indices: NDArray[np.int64]) -> list[Boxes]:
        return [self.boxes[index] for index in indices]

    def moved(self, taken: Sequence[Boxes], maps: Tensor, size: tuple[int, int]) -> Tensor:
        """(B, M, 5): class, centre x and y, width and height in 0..1; class -1 is padding."""
        back = torch.linalg.inv(maps.double())
        visible = [_moved(boxes, matrix, size) for boxes, matrix in zip(taken, back, strict=True)]
        padded = torch.full((len(visible), max((len(rows) for rows in visible), default=0), 5), -1.0)
        for image, rows in zip(padded, visible, strict=True):
            image[: len(rows)] = rows
        return padded

    def own(self, index: int) -> Tensor:
        boxes = self.boxes[index]
        rows = [(c, *box, x) for c, box, x in zip(boxes.classes, boxes.corners, boxes.crowd, strict=True)]
        return torch.tensor(rows, dtype=torch.float32).reshape(-1, 6)

    def size(self, index: int) -> tuple[int, int]:
        return self.boxes[index].size

    def scan(self, statistics: Callable[[Tensor], Any]) -> TargetScan:
        return TargetScan({}, {index: statistics(self.own(index)) for index in range(len(self.boxes))})


def _moved(boxes: Boxes, matrix: Tensor, size: tuple[int, int]) -> Tensor:
    """(m, 5) of the boxes still visible after augmentation. `matrix` (3, 3) leads from the image to the result."""
    learnt = [index for index, crowd in enumerate(boxes.crowd) if not crowd]
    if not learnt:
        return torch.zeros(0, 5)
    height, width = boxes.size
    corners = torch.tensor([boxes.corners[index] for index in learnt], dtype=torch.float64)
    corners = corners / torch.tensor([width, height, width, height]) * 2 - 1  # (m, 4) in [-1, 1]
    left, top, right, bottom = corners.unbind(1)
    four = torch.stack([torch.stack([x, y, torch.ones_like(x)]) for x in (left, right) for y in (top, bottom)])
    x, y, _ = (matrix @ four.permute(1, 0, 2).flatten(1)).reshape(3, 4, -1)  # where the four corners went
    hull = torch.stack([x.amin(0), y.amin(0), x.amax(0), y.amax(0)], dim=1)
    visible = hull.clamp(-1, 1)
    sides, whole = (visible[:, 2:] - visible[:, :2]) / 2, (hull[:, 2:] - hull[:, :2]) / 2
    pixels = torch.tensor([size[1], size[0]]) * sides
    kept = (sides.prod(1) >= VISIBLE * whole.prod(1)) & (pixels >= NARROW).all(1)
    centres = (visible[:, :2] + visible[:, 2:]) / 4 + 0.5
    classes = torch.tensor([boxes.classes[index] for index in learnt])[:, None]
    return torch.cat([classes, centres, sides], dim=1)[kept].float()
