"""From a network's outputs to boxes by operations of fixed shapes: what goes into a file for other runtimes."""

from __future__ import annotations

import torch
from torch import Tensor

from vitrail.tasks.detect.box_geometry import area, iou, pairwise, to_corners
from vitrail.tasks.detect.nms import NEVER

ROUNDS = 32  # of suppression: right unless so many boxes of a class overlap one the next, each the next better


def best_boxes(scores: Tensor, boxes: Tensor, most: int, overlap: float) -> dict[str, Tensor]:
    """scores (B, Q, K), boxes (B, Q, 4) in centre form -> boxes (B, n, 4) in corner form, scores and labels (B, n).

    Best first, at most so many. One that overlaps a better one of its class by more than `overlap` has a score of 0, as
    has one without an area.
    """
    classes = scores.shape[2]
    best, place = scores.flatten(1).topk(min(most, scores.shape[1] * classes), dim=1)
    query = torch.div(place, classes, rounding_mode="floor")
    label = place - query * classes
    corners = to_corners(boxes.gather(1, query[..., None].expand(-1, -1, 4))).clamp(0.0, 1.0)
    best = torch.where(area(corners) > 0, best, 0.0)
    if overlap < NEVER:
        best = torch.where(distinct_rounds(corners, label, overlap), best, 0.0)
    best, order = best.topk(best.shape[1], dim=1)
    corners = corners.gather(1, order[..., None].expand(-1, -1, 4))
    return {"boxes": corners, "scores": best, "labels": label.gather(1, order)}


def distinct_rounds(corners: Tensor, label: Tensor, overlap: float) -> Tensor:
    """Non-maximum suppression of boxes (B, n, 4), best first: (B, n), True for those that stay.

    `box_geometry.distinct` walks from box to box. Here all boxes are decided at once, again and again: after r rounds
    every box is right that stands at the end of a chain of at most r boxes, each suppressing the next.
    """
    rank = torch.arange(corners.shape[1], device=corners.device)
    clash = (label[:, :, None] == label[:, None]) & (pairwise(iou, corners, corners) > overlap)
    worse = (clash & (rank[:, None] < rank)).to(corners.dtype)  # (B, n, n): the first would suppress the second
    stays = torch.ones_like(corners[:, None, :, 0])  # (B, 1, n)
    for _ in range(min(ROUNDS, corners.shape[1])):
        stays = ((stays @ worse) < 0.5).to(corners.dtype)
    return stays[:, 0] > 0.5
