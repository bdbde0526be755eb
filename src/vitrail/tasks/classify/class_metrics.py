"""What is measured of answers with one class an image: accuracy, F1, confusion, the worst mistakes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from vitrail.tasks.shared.intervals import ratio, sums_by_group
from vitrail.tasks.shared.labels.calibration import reliability
from vitrail.tasks.shared.labels.label_scores import LabelScores, precision_recall_f1
from vitrail.tasks.task import WORST

PAIRS = 20  # most confused pairs that the results name
READABLE = 1000  # classes; a larger confusion matrix is left out, and the pairs stand for it


class ClassMetrics(LabelScores):
    """The answers about M images of known class, and all that is measured from them."""

    def __init__(self, logits: np.ndarray, truth: np.ndarray) -> None:
        self.classes = logits.shape[1]
        self.truth = truth
        self.guess = logits.argmax(1)
        self.right = self.guess == truth
        log_p = torch.log_softmax(torch.from_numpy(logits), 1).numpy()
        self.log_loss = -log_p[np.arange(len(truth)), truth]
        self.confidence = np.exp(log_p[np.arange(len(truth)), self.guess])
        self.in_top5 = rank_of_truth(logits, truth) < 5

    def metrics(self, weights: np.ndarray) -> dict[str, np.ndarray]:
        """Each (R,) for weights (M, R). Averages over classes are over those that occur among the weighted images."""
        images = weights.sum(0)
        support, predicted, hits = self.counts(weights)
        occurring = (support > 0).sum(0)
        metrics = {
            "accuracy": self.right @ weights / images,
            "balanced_accuracy": ratio(hits, support).sum(0) / occurring,
            "macro_f1": ratio(2 * hits, support + predicted).sum(0) / occurring,
            "log_loss": self.log_loss @ weights / images,
        }
        if self.classes > 5:
            metrics["top5_accuracy"] = self.in_top5 @ weights / images
        return metrics

    def calibration(self) -> dict[str, Any]:
        return reliability(self.confidence, self.right)

    def details(self, labels: Sequence[str]) -> dict[str, Any]:
        return {
            "per_label": self.per_label(labels),
            "worst": self.worst(labels),
            "confusion": self.confusion(),
            "confused_pairs": self.confused_pairs(labels),
        }

    def counts(self, weights: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """(K, R) each: images of the class, images that were given it, and both."""
        support = sums_by_group(weights, self.truth, self.classes)
        predicted = sums_by_group(weights, self.guess, self.classes)
        # the mistakes are a group of their own, then dropped
        hit_class = np.where(self.right, self.truth, self.classes)
        return support, predicted, sums_by_group(weights, hit_class, self.classes + 1)[:-1]

    def per_label(self, labels: Sequence[str]) -> list[dict[str, Any]]:
        rows = precision_recall_f1(*(count[:, 0] for count in self.counts(np.ones((len(self.truth), 1)))))
        return [{"label": label, **row} for label, row in zip(labels, rows, strict=True)]

    def worst(self, labels: Sequence[str]) -> list[dict[str, Any]]:
        """The mistakes that the model was most sure of."""
        wrong = np.flatnonzero(~self.right)
        wrong = wrong[np.argsort(-self.confidence[wrong], kind="stable")][:WORST]
        return [
            {
                "index": int(i),
                "truth": labels[self.truth[i]],
                "answer": labels[self.guess[i]],
                "probability": float(self.confidence[i]),
                "probability_of_truth": float(np.exp(-self.log_loss[i])),
            }
            for i in wrong
        ]

    def confusion(self) -> list[list[int]] | None:
        """Images of class i (row) that were given class j (column)."""
        if self.classes > READABLE:
            return None
        cells = np.bincount(self.truth * self.classes + self.guess, minlength=self.classes**2)
        return cells.reshape(self.classes, self.classes).tolist()

    def confused_pairs(self, labels: Sequence[str]) -> list[dict[str, Any]]:
        """Which class is most often taken for which other."""
        wrong = ~self.right
        cells, counts = np.unique(self.truth[wrong] * self.classes + self.guess[wrong], return_counts=True)
        support = np.bincount(self.truth, minlength=self.classes)
        pairs = []
        for place in np.argsort(-counts, kind="stable")[:PAIRS]:
            truth, guess = divmod(int(cells[place]), self.classes)
            count = int(counts[place])
            pairs.append(
                {"truth": labels[truth], "answer": labels[guess], "count": count, "share": count / int(support[truth])}
            )
        return pairs


def rank_of_truth(logits: np.ndarray, truth: np.ndarray) -> np.ndarray:
    """(M,) how many classes come before the true one; of equal logits the first class comes first, as in argmax."""
    own = logits[np.arange(len(truth)), truth][:, None]
    before = np.arange(logits.shape[1]) < truth[:, None]
    return ((logits > own) | ((logits == own) & before)).sum(1)
