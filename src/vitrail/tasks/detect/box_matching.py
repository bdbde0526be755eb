"""Which answer belongs to which object: one to one for what the model says in the end (Hungarian), many to one for the
proposals of the patches (task-aligned assignment), so that they learn from every place that an object covers. And which
boxes of two engines are the same object."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from vitrail.tasks.agreement import MOST_PROBABILITY, Agreement
from vitrail.tasks.detect.box_geometry import giou, iou, pairwise, to_corners

CLASS_COST, L1_COST, GIOU_COST = 2.0, 5.0, 2.0  # as in Deformable DETR
OVERLAP = 0.9  # from which on two boxes of a class are the same object in the same place
CANDIDATES = 9  # places that learn an object
IMPOSSIBLE = 1e6  # the cost of what is no number: a model that has diverged is to fail in its loss, not here


@torch.no_grad()
def match(chances: Tensor, boxes: Tensor, targets: Tensor) -> Tensor:
    """The queries that the objects are matched to, (B, M), at the lowest cost in sum; -1 for padding, and for objects
    that found no query because there are fewer of them.

    chances (B, Q, C): of each class, 0 to 1. boxes (B, Q, 4): centre form. targets (B, M, 5): class, or -1 for
    padding, and box. Each image by itself, so that neither its batch nor the padding can change the result.
    """
    from scipy.optimize import linear_sum_assignment

    matched = torch.full(targets.shape[:2], -1, dtype=torch.int64)
    for image, (chance, box, target) in enumerate(zip(chances.float(), boxes.float(), targets, strict=True)):
        real = (target[:, 0] >= 0).nonzero()[:, 0]
        if len(real):
            costs = cost(chance, box, target[real]).cpu()
            query, object_index = linear_sum_assignment(
                torch.nan_to_num(costs, IMPOSSIBLE, IMPOSSIBLE, -IMPOSSIBLE).numpy()
            )
            matched[image, real.cpu()[torch.from_numpy(object_index)]] = torch.from_numpy(query)
    return matched.to(targets.device)


def cost(chances: Tensor, boxes: Tensor, targets: Tensor) -> Tensor:
    """(Q, m): how badly each query answers each object."""
    right = chances[:, targets[:, 0].long()].clamp(1e-6, 1 - 1e-6)  # (Q, m)
    # focal loss as a cost: what it would be to call it the class, less what it is not to
    classes = 0.25 * (1 - right) ** 2 * -right.log() - 0.75 * right**2 * -(1 - right).log()
    distance = torch.cdist(boxes, targets[:, 1:].float(), p=1)
    overlap = pairwise(giou, to_corners(boxes), to_corners(targets[:, 1:].float()))
    return CLASS_COST * classes + L1_COST * distance - GIOU_COST * overlap


class Assigned(NamedTuple):
    """What the places of one image are to learn."""

    place: Tensor  # (n,) the places that belong to an object
    target: Tensor  # (n,) and to which
    quality: Tensor  # (n,) the score that they should give it, 0 to 1


@torch.no_grad()
def assign(chances: Tensor, boxes: Tensor, places: Tensor, targets: Tensor) -> Assigned:
    """The places of one image that learn its objects: those inside of one whose own answer is already the best, by
    score and overlap together (task-aligned assignment). A place inside of several objects takes the closest fit.

    chances (P, K), boxes (P, 4), places (P, 2): the centres of the places, targets (m, 5) without padding.
    """
    truth = to_corners(targets[:, 1:].float())  # (m, 4)
    overlap = pairwise(iou, truth, to_corners(boxes)).clamp(min=0)  # (m, P)
    score = chances[:, targets[:, 0].long()].T  # (m, P)
    inside = _inside(places, targets[:, 1:].float())
    aligned = torch.where(inside, score.sqrt() * overlap**4 + 1e-9, 0.0)  # the least, so that a start is made
    kept = min(CANDIDATES, aligned.shape[1])
    best, where = aligned.topk(kept, dim=1)
    chosen = torch.zeros_like(inside).scatter_(1, where, best > 0)
    fit = torch.where(chosen, overlap + 1e-9, -1.0)
    closest, owner = fit.max(0)  # (P,)
    place = (closest > 0).nonzero()[:, 0]
    target = owner[place]
    aligned = torch.where(chosen, aligned, 0.0)
    most = (aligned.max(1).values.clamp(min=1e-9), torch.where(chosen, overlap, 0.0).max(1).values)
    quality = aligned[target, place] / most[0][target] * most[1][target]
    return Assigned(place, target, quality)


def _inside(places: Tensor, boxes: Tensor) -> Tensor:
    """(m, P): whether a place lies in the middle part of a box; the nearest one does, however small the box is."""
    away = (places[None] - boxes[:, None, :2]).abs()  # (m, P, 2)
    inside = (away < 0.4 * boxes[:, None, 2:]).all(-1)
    nearest = away.square().sum(-1).argmin(1)
    return inside.scatter_(1, nearest[:, None], True)


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
