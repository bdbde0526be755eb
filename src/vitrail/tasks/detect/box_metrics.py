"""What is counted of boxes at an IoU of 0.5: objects found, objects missed, false alarms, the best threshold."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from vitrail.tasks.detect.average_precision import Hits, Ranked, hits, real
from vitrail.tasks.shared.intervals import ratio
from vitrail.tasks.task import WORST

LEAST = 0.05  # score of the objects that an answer names at all


def counted(labels: Any) -> str:
    """'3 red cell, 1 platelet', the most frequent first."""
    return ", ".join(f"{count} {label}" for label, count in Counter(labels).most_common())


class BoxMetrics:
    """The detections in M images of known objects, and what is counted of them at an overlap of one half."""

    def __init__(self, detections: np.ndarray, truths: np.ndarray, classes: int) -> None:
        self.classes = classes
        self.detections = [real(rows) for rows in detections]
        self.truths = [real(rows) for rows in truths]
        self.hits = [hits(detections, truth) for detections, truth in zip(self.detections, self.truths, strict=True)]
        rows = [
            np.column_stack([detections[:, :2], hit.object_of, np.full(len(detections), image)])
            for image, (detections, hit) in enumerate(zip(self.detections, self.hits, strict=True))
        ]
        every = np.concatenate(rows) if rows else np.zeros((0, 4))
        every = every[every[:, 2] != -2]
        self.label, self.score = every[:, 0].astype(int), every[:, 1]
        self.right, self.image = every[:, 2] >= 0, every[:, 3].astype(int)
        plain = [truth[truth[:, 5] == 0, 0].astype(int) for truth in self.truths]  # without crowds
        self.objects = np.stack([np.bincount(truth, minlength=classes) for truth in plain])  # (M, K)

    def ap50(self, weights: np.ndarray) -> dict[str, np.ndarray]:
        """{"AP50": (R,)} for weights (M, R) of the images: the mean over the classes that occur among them."""
        each = []
        for k in range(self.classes):
            own = self.label == k
            ranked = Ranked(self.score[own], self.right[own], self.image[own], self.objects[:, k])
            each.append(ranked.average_precision(weights))
        table = np.stack(each)  # (K, R)
        return {"AP50": ratio(np.nansum(table, axis=0), (~np.isnan(table)).sum(0).astype(float))}

    def best_threshold(self, usual: float) -> float:
        """The score at which F1 over all classes is best; the usual one when nothing is right."""
        order = np.argsort(-self.score, kind="stable")
        right = self.right[order].cumsum()
        f1 = ratio(2.0 * right, (np.arange(1, len(order) + 1) + self.objects.sum()).astype(float))
        if not len(f1) or not right[-1]:
            return usual
        best = int(f1.argmax())
        below = self.score[order[best + 1]] if best + 1 < len(order) else self.score[order[best]]
        return max(LEAST, round(float(self.score[order[best]] + below) / 2, 4))

    def counts(self, threshold: float) -> dict[str, np.ndarray]:
        """(K,) each: objects, those found, and false alarms, at this score or more."""
        sure = self.score >= threshold
        right = np.bincount(self.label[sure & self.right], minlength=self.classes)
        alarms = np.bincount(self.label[sure & ~self.right], minlength=self.classes)
        return {"objects": self.objects.sum(0), "found": right, "false_alarms": alarms}

    def metrics(self, counts: Mapping[str, np.ndarray]) -> dict[str, float]:
        objects, right, alarms = (counts[name].sum() for name in ("objects", "found", "false_alarms"))
        answered = right + alarms
        return {
            "precision": float(right / answered) if answered else 0.0,
            "recall": float(right / objects) if objects else 0.0,
            "f1": float(2 * right / (answered + objects)) if answered + objects else 0.0,
        }

    def per_label(
        self, counts: Mapping[str, np.ndarray], ap50: np.ndarray, ap: np.ndarray, labels: Sequence[str]
    ) -> list[dict[str, Any]]:
        """`support` counts objects. Of a class without any only precision is known, which is 0."""
        rows = []
        for k, label in enumerate(labels):
            objects, right, alarms = (int(counts[name][k]) for name in ("objects", "found", "false_alarms"))
            answered = right + alarms
            rows.append(
                {
                    "label": label,
                    "AP50": None if np.isnan(ap50[k]) else float(ap50[k]),
                    "average_precision": None if np.isnan(ap[k]) else float(ap[k]),
                    "precision": right / answered if answered else 0.0,
                    "recall": right / objects if objects else None,
                    "f1": 2 * right / (answered + objects) if objects else None,
                    "support": objects,
                    "false_alarms": alarms,
                    "missed": objects - right,
                }
            )
        return rows

    def worst(self, threshold: float, labels: Sequence[str]) -> list[dict[str, Any]]:
        """The images with the most misses and the surest false alarms, each counted as 1, or as its score."""
        rows: list[dict[str, Any]] = []
        for i, (detections, truth, hit) in enumerate(zip(self.detections, self.truths, self.hits, strict=True)):
            missed, alarms = misses_and_alarms(detections, truth, hit, threshold)
            fault = len(missed) + float(detections[alarms, 1].sum())
            if fault > 0:
                sure = detections[detections[:, 1] >= threshold]
                rows.append(
                    {
                        "index": i,
                        "truth": counted(labels[int(k)] for k in truth[:, 0]),
                        "answer": counted(labels[int(k)] for k in sure[:, 0]),
                        "missed": len(missed),
                        "false_alarms": len(alarms),
                        "fault": round(fault, 4),
                    }
                )
        return sorted(rows, key=lambda row: -row["fault"])[:WORST]


def misses_and_alarms(
    detections: np.ndarray, truth: np.ndarray, hit: Hits, threshold: float
) -> tuple[np.ndarray, np.ndarray]:
    """The objects of an image that were not found, and the detections that hit none, at this score or more."""
    sure = detections[:, 1] >= threshold
    owner = hit.detection_of
    unseen = np.array([one < 0 or not sure[one] for one in owner], dtype=bool)
    missed = np.flatnonzero(unseen & (truth[:, 5] == 0))
    return missed, np.flatnonzero(sure & (hit.object_of == -1))
