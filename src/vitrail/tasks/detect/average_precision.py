"""How good detections are. COCO's average precision is measured by faster-coco-eval, the maintained successor of
pycocotools; what it does not tell is counted here: which detection hit which object, and how far AP50 could be off.

Detections (M, 300, 6): class, score, left, top, right, bottom. Truths (M, most, 6): class, left, top, right, bottom,
crowd. Class -1 is padding. All in the pictures' own pixels.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch

from vitrail.tasks.detect.box_geometry import area, iou, pairwise
from vitrail.tasks.shared.intervals import ratio, sums_by_group

RECALLS = np.linspace(0, 1, 101)  # where COCO reads the precision
USUAL_MOST = 100  # detections of a class in an image that COCO counts


class Precision(NamedTuple):
    """COCO's numbers. Of a class without objects nothing is known: NaN."""

    ap: np.ndarray  # (K,) the mean over overlaps of 0.50, 0.55, ... 0.95
    ap50: np.ndarray  # (K,)
    ap75: np.ndarray  # (K,)
    curve: np.ndarray  # (K, 101) precision at recalls of 0, 0.01, ... 1, at an overlap of 0.5
    recall: np.ndarray  # (K,) the largest, at an overlap of 0.5


def measure_precision(detections: np.ndarray, truths: np.ndarray, classes: int) -> Precision:
    from faster_coco_eval import COCO, COCOeval_faster

    if not (truths[..., 0] >= 0).any() or not (detections[..., 0] >= 0).any():
        return _nothing(truths, classes)
    images = [{"id": i + 1, "width": 1, "height": 1} for i in range(len(truths))]
    categories = [{"id": k + 1, "name": str(k)} for k in range(classes)]
    truth = COCO({"images": images, "categories": categories, "annotations": _annotations(truths)})
    results = truth.loadRes(_results(detections))
    measure = COCOeval_faster(truth, results, "bbox")
    crowded = np.max((truths[..., 0] >= 0).sum(1), initial=0) > USUAL_MOST
    measure.params.maxDets = [1, 10, detections.shape[1] if crowded else USUAL_MOST]
    measure.params.areaRng, measure.params.areaRngLbl = measure.params.areaRng[:1], measure.params.areaRngLbl[:1]
    measure.evaluate()
    measure.accumulate()
    table = np.asarray(measure.eval["precision"], dtype=float)[:, :, :, 0, -1]  # (10, 101, K)
    recall = np.asarray(measure.eval["recall"], dtype=float)[:, :, 0, -1]  # (10, K)
    table, recall = np.where(table < 0, np.nan, table), np.where(recall < 0, np.nan, recall)
    return Precision(table.mean((0, 1)), table[0].mean(0), table[5].mean(0), table[0].T, recall[0])


def _nothing(truths: np.ndarray, classes: int) -> Precision:
    """Without any detection or any object: 0 for the classes that occur, NaN for the others."""
    there = np.isin(np.arange(classes), truths[(truths[..., 5] == 0) & (truths[..., 0] >= 0)][:, 0])
    zero = np.where(there, 0.0, np.nan)
    return Precision(zero, zero, zero, np.repeat(zero[:, None], len(RECALLS), axis=1), zero)


def _annotations(truths: np.ndarray) -> list[dict[str, Any]]:
    results: list[dict[str, Any]] = []
    for image, slot in zip(*np.nonzero(truths[..., 0] >= 0), strict=True):
        label, left, top, right, bottom, crowd = truths[image, slot].tolist()
        box = [left, top, right - left, bottom - top]
        results.append(
            {
                "id": len(results) + 1,
                "image_id": int(image) + 1,
                "category_id": int(label) + 1,
                "bbox": box,
                "area": box[2] * box[3],
                "iscrowd": int(crowd),
            }
        )
    return results


def _results(detections: np.ndarray) -> np.ndarray:
    """(n, 7): image, left, top, width, height, score, class, the form that the library reads fastest."""
    image, slot = np.nonzero(detections[..., 0] >= 0)
    label, score, left, top, right, bottom = detections[image, slot].astype(float).T
    return np.stack([image + 1, left, top, right - left, bottom - top, score, label + 1], axis=1)


# ---- which detection hit which object


@dataclass(frozen=True)
class Hits:
    """Of one image, at an overlap of at least one half."""

    object_of: np.ndarray  # (n,) the object that each detection hit, -1: none, -2: one of a crowd, which is no fault
    detection_of: np.ndarray  # (m,) of each object the detection that hit it, or -1


def hits(detections: np.ndarray, truth: np.ndarray, overlap: float = 0.5) -> Hits:
    """The surest first, each takes the object of its class that it covers best and that is still free, as COCO does.

    detections (n, 6), truth (m, 6), both without padding.
    """
    object_of, detection_of = np.full(len(detections), -1), np.full(len(truth), -1)
    if not len(detections) or not len(truth):
        return Hits(object_of, detection_of)
    covers = _overlaps(detections, truth)
    covers[detections[:, 0][:, None] != truth[:, 0]] = 0
    crowd = truth[:, 5] > 0
    possible = np.flatnonzero(covers.max(1) >= overlap)
    for index in possible[np.argsort(-detections[possible, 1], kind="stable")]:
        free = np.where((detection_of < 0) & ~crowd, covers[index], 0)
        best = int(free.argmax())
        if free[best] >= overlap:
            object_of[index], detection_of[best] = best, index
        elif crowd.any() and covers[index][crowd].max() >= overlap:
            object_of[index] = -2
    return Hits(object_of, detection_of)


def _overlaps(detections: np.ndarray, truth: np.ndarray) -> np.ndarray:
    """(n, m) IoU; with a crowd the share of the detection that lies in it."""
    a, b = torch.from_numpy(detections[:, 2:]).double(), torch.from_numpy(truth[:, 1:5]).double()
    plain = pairwise(iou, a, b)
    crowd = torch.from_numpy(truth[:, 5] > 0)
    if crowd.any():
        sides = torch.minimum(a[:, None, 2:], b[:, 2:]) - torch.maximum(a[:, None, :2], b[:, :2])
        share = sides.clamp(min=0).prod(-1) / area(a)[:, None].clamp(min=1e-9)
        plain = torch.where(crowd, share, plain)
    return plain.numpy()


def real(rows: np.ndarray) -> np.ndarray:
    """Without padding."""
    return rows[rows[:, 0] >= 0]


class Ranked:
    """All detections of a class in the order of their scores, in terms of their images, so that AP50 can be had for
    any weights of the images: with all 1 it is COCO's."""

    def __init__(self, scores: np.ndarray, right: np.ndarray, images: np.ndarray, objects: np.ndarray) -> None:
        """scores, right, images (n,): of the detections; objects (M,): how many each image has."""
        order = np.argsort(-scores, kind="stable")
        right, images = right[order], images[order]
        self.objects = objects.astype(float)
        self.steps = int(right.sum())
        step = np.cumsum(right) - right  # a wrong one counts with the next right one
        kept = step < self.steps
        self.seen, self.step, self.right = images[kept], step[kept], right[kept]

    def average_precision(self, weights: np.ndarray) -> np.ndarray:
        """(R,) for weights (M, R); NaN where no object is left."""
        objects = self.objects @ weights
        if not self.steps:
            return np.where(objects > 0, 0.0, np.nan)
        each = weights.take(self.seen, axis=0)
        seen = sums_by_group(each, self.step, self.steps).cumsum(0)  # (steps, R)
        right = each[self.right].cumsum(0)
        best = np.maximum.accumulate(ratio(right, seen)[::-1])[::-1]  # the best precision at this recall or more
        recall = ratio(right, objects[None])
        areas = np.zeros(weights.shape[1])
        for column in range(weights.shape[1]):
            at = np.searchsorted(recall[:, column], RECALLS - 1e-12)
            areas[column] = best[at[at < self.steps], column].sum() / len(RECALLS)
        return np.where(objects > 0, areas, np.nan)
