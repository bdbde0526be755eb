"""What is measured of answers with several labels an image: mean average precision, F1, exact matches."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch.nn import functional as F

from vitrail.tasks.shared.intervals import ratio, sums_by_group
from vitrail.tasks.shared.labels.calibration import reliability
from vitrail.tasks.shared.labels.label_scores import LabelScores, precision_recall_f1
from vitrail.tasks.task import WORST


class LabelMetrics(LabelScores):
    """The answers about M images of known labels, and all that is measured from them."""

    def __init__(self, logits: np.ndarray, targets: np.ndarray) -> None:
        self.truth = targets > 0.5  # (M, K)
        self.given = logits > 0
        z, y = torch.from_numpy(logits), torch.from_numpy(self.truth).double()
        self.probability = torch.sigmoid(z).numpy()
        self.log_loss = F.binary_cross_entropy_with_logits(z, y, reduction="none").mean(1).numpy()  # (M,)
        self.exact = (self.truth == self.given).all(1)
        self.rankings = [Ranking(logits[:, k], self.truth[:, k]) for k in range(logits.shape[1])]

    def metrics(self, weights: np.ndarray) -> dict[str, np.ndarray]:
        """Each (R,) for weights (M, R). Averages over labels are over those that occur; 0 when none does."""
        images = weights.sum(0)
        support, answered, hits = self.counts(weights)
        occurring = (support > 0).sum(0)
        average_precision = np.stack([ranking.average_precision(weights) for ranking in self.rankings])
        return {
            "mAP": ratio(average_precision.sum(0), occurring),
            "micro_f1": ratio(2 * hits.sum(0), support.sum(0) + answered.sum(0)),
            "macro_f1": ratio(ratio(2 * hits, support + answered).sum(0), occurring),
            "exact_match": self.exact @ weights / images,
            "log_loss": self.log_loss @ weights / images,
        }

    def calibration(self) -> dict[str, Any]:
        return reliability(self.probability.ravel(), self.truth.ravel())

    def details(self, labels: Sequence[str]) -> dict[str, Any]:
        return {"per_label": self.per_label(labels), "worst": self.worst(labels)}

    def counts(self, weights: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """(K, R) each: images that have the label, that were given it, and both."""
        support, answered, hits = (
            x.T.astype(float) @ weights for x in (self.truth, self.given, self.truth & self.given)
        )
        return support, answered, hits

    def per_label(self, labels: Sequence[str]) -> list[dict[str, Any]]:
        """Of a label without images only precision, which is 0, and calibration are known."""
        ones = np.ones((len(self.truth), 1))
        scores = precision_recall_f1(*(count[:, 0] for count in self.counts(ones)))
        return [
            {
                "label": label,
                "average_precision": float(self.rankings[k].average_precision(ones)[0]) if row["support"] else None,
                **row,
                "ece": reliability(self.probability[:, k], self.truth[:, k])["ece"],
            }
            for k, (label, row) in enumerate(zip(labels, scores, strict=True))
        ]

    def worst(self, labels: Sequence[str]) -> list[dict[str, Any]]:
        """The images with a mistake whose labels surprise the model most."""
        wrong = np.flatnonzero(~self.exact)
        wrong = wrong[np.argsort(-self.log_loss[wrong], kind="stable")][:WORST]
        return [
            {
                "index": int(i),
                "truth": ", ".join(labels[k] for k in np.flatnonzero(self.truth[i]).tolist()),
                "answer": ", ".join(labels[k] for k in np.flatnonzero(self.given[i]).tolist()),
                "log_loss": float(self.log_loss[i]),
            }
            for i in wrong
        ]


class Ranking:
    """The images in the order of a label's scores, as the steps of its precision-recall curve.

    Images of equal score are one step, for no threshold tells them apart. Only steps with an image that has the label
    add to the area, so the images of any other are counted in with the next one that does.
    """

    def __init__(self, scores: np.ndarray, truth: np.ndarray) -> None:
        order = np.argsort(-scores, kind="stable")
        run = np.append(0, np.cumsum(np.diff(scores[order]) != 0))  # of equal scores, by rank
        steps = np.unique(run[truth[order]])
        self.steps = len(steps)
        self.step = np.empty(len(scores), dtype=np.int64)  # of each image; those after the last step come to self.steps
        self.step[order] = np.searchsorted(steps, run)
        self.true = np.flatnonzero(truth)

    def average_precision(self, weights: np.ndarray) -> np.ndarray:
        """(R,) for weights (M, R): precision at each step times the recall it adds. 0 when no image has the label."""
        if not self.steps:
            return np.zeros(weights.shape[1])
        ranked = sums_by_group(weights, self.step, self.steps + 1)[:-1].cumsum(0)  # (steps, R)
        true_positives = sums_by_group(weights.take(self.true, axis=0), self.step[self.true], self.steps)
        hits = true_positives.cumsum(0)
        return ratio((true_positives * ratio(hits, ranked)).sum(0), hits[-1])
