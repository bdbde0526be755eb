"""Geometry of boxes. Centre form (cx, cy, w, h) is what networks learn, corner form (left, top, right, bottom) what
overlap is measured in. Coordinates are 0 to 1 of a picture, or its pixels; shapes are (..., 4).

torchvision.ops has most of this; depending on it for thirty lines would tie every install to its build of torch."""

from __future__ import annotations

import torch
from torch import Tensor

ROUNDS = 32  # of suppression: right unless so many boxes of a class overlap one the next, each the next better


def to_corners(boxes: Tensor) -> Tensor:
    """(cx, cy, w, h) -> (left, top, right, bottom)."""
    centre, half = boxes[..., :2], boxes[..., 2:] / 2
    return torch.cat([centre - half, centre + half], dim=-1)


def to_centres(corners: Tensor) -> Tensor:
    """(left, top, right, bottom) -> (cx, cy, w, h)."""
    first, second = corners[..., :2], corners[..., 2:]
    return torch.cat([(first + second) / 2, second - first], dim=-1)


def area(corners: Tensor) -> Tensor:
    return (corners[..., 2] - corners[..., 0]).clamp(min=0.0) * (corners[..., 3] - corners[..., 1]).clamp(min=0.0)


def iou(a: Tensor, b: Tensor) -> Tensor:
    """Intersection over union of boxes in corner form that are paired by broadcasting; 0 where both have no area."""
    both = _shared(a, b)
    union = area(a) + area(b) - both
    return both / union.clamp(min=1e-9)


def giou(a: Tensor, b: Tensor) -> Tensor:
    """IoU less the empty share of the smallest box around both: boxes that do not touch still know which way to go."""
    both = _shared(a, b)
    union = area(a) + area(b) - both
    around = torch.cat([torch.minimum(a[..., :2], b[..., :2]), torch.maximum(a[..., 2:], b[..., 2:])], dim=-1)
    whole = area(around)
    return both / union.clamp(min=1e-9) - (whole - union) / whole.clamp(min=1e-9)


def pairwise(measure, a: Tensor, b: Tensor) -> Tensor:  # type: ignore[no-untyped-def]
    """(n, 4) and (m, 4) -> (n, m) of `iou` or `giou`."""
    return measure(a[..., :, None, :], b[..., None, :, :])


def distinct(corners: Tensor, labels: Tensor, most: float) -> Tensor:
    """Non-maximum suppression: of boxes (n, 4), best first, the numbers (k,) of those that overlap no better one of
    their class by more than `most`."""
    same = (labels[:, None] == labels) & (pairwise(iou, corners, corners) > most)
    later = same.triu(diagonal=1)
    alive = torch.ones(len(corners), dtype=torch.bool)
    for one in later.any(1).nonzero()[:, 0].tolist():
        if alive[one]:
            alive &= ~later[one]
    return alive.nonzero()[:, 0]


def distinct_rounds(corners: Tensor, label: Tensor, overlap: float) -> Tensor:
    """Non-maximum suppression of boxes (B, n, 4), best first: (B, n), True for those that stay.

    `distinct` walks from box to box. Here all boxes are decided at once, again and again: after r rounds
    every box is right that stands at the end of a chain of at most r boxes, each suppressing the next.
    """
    rank = torch.arange(corners.shape[1], device=corners.device)
    clash = (label[:, :, None] == label[:, None]) & (pairwise(iou, corners, corners) > overlap)
    worse = (clash & (rank[:, None] < rank)).to(corners.dtype)  # (B, n, n): the first would suppress the second
    stays = torch.ones_like(corners[:, None, :, 0])  # (B, 1, n)
    for _ in range(min(ROUNDS, corners.shape[1])):
        stays = ((stays @ worse) < 0.5).to(corners.dtype)
    return stays[:, 0] > 0.5


def _shared(a: Tensor, b: Tensor) -> Tensor:
    """The area that both cover."""
    sides = torch.minimum(a[..., 2:], b[..., 2:]) - torch.maximum(a[..., :2], b[..., :2])
    return sides.clamp(min=0.0).prod(-1)
