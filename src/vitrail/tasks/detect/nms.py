"""The overlap from which on two boxes of a class are one object (non-maximum suppression), chosen by measurement.

A model that was trained for minutes says an object several times, its boxes farther apart and their scores flatter than
those of a model that was trained for hours. And there are sets whose objects do overlap, and sets whose never do.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from vitrail.tasks.detect.average_precision import measure_precision
from vitrail.tasks.detect.box_geometry import distinct

USUAL = 0.7  # IoU, where nothing was measured
NEVER = 1.0  # no IoU is above it: nothing is suppressed
CANDIDATES = (0.3, 0.4, 0.5, 0.6, USUAL, 0.8, NEVER)
IMAGES = 100  # that suffice for the choice, spread evenly over those that there are


def best_nms_iou(rows: Tensor, truths: Tensor, classes: int) -> float:
    """The candidate of the best AP50; of equal ones that of the best AP, then the one nearest to the usual.

    rows (M, 300, 6): detections of which none was suppressed; truths (M, most, 6): see average_precision.py.
    """
    some = torch.from_numpy(np.unique(np.linspace(0, len(rows) - 1, min(len(rows), IMAGES)).astype(np.int64)))
    rows, known = rows[some], truths[some].numpy()
    scores = {}
    for candidate in CANDIDATES:
        precision = measure_precision(suppress_rows(rows, candidate).numpy(), known, classes)
        if np.isnan(precision.ap50).all():
            return USUAL  # no object to measure by
        scores[candidate] = (float(np.nanmean(precision.ap50)), float(np.nanmean(precision.ap)))
    return max(CANDIDATES, key=lambda candidate: (*scores[candidate], -abs(candidate - USUAL)))


def suppress_rows(rows: Tensor, most: float) -> Tensor:
    """Rows (M, 300, 6), best first, without those that overlap a better one by more than `most`. Class -1: padding."""
    suppressed = torch.zeros_like(rows)
    suppressed[..., 0] = -1
    for image, kept in zip(rows, suppressed, strict=True):
        left = suppress(image[image[:, 0] >= 0], most)
        kept[: len(left)] = left
    return suppressed


def suppress(detections: Tensor, most: float) -> Tensor:
    """Of detections (n, 6 or more), class, score, left, top, right, bottom, best first, those that stay."""
    return detections if most >= NEVER else detections[distinct(detections[:, 2:6], detections[:, 0], most)]
