"""One label an image: softmax, cross-entropy, accuracy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from vitrail.errors import VitrailError
from vitrail.tasks.calibration import reliability
from vitrail.tasks.intervals import bootstrap as bootstrap_intervals
from vitrail.tasks.intervals import plain, ratio, sums_by_group
from vitrail.tasks.labelling import Labelling, guesses
from vitrail.tasks.task import WORST, Mix, mixed

PAIRS = 20  # most confused pairs to tell
READABLE = 1000  # classes; a larger confusion matrix is left out, and the pairs tell it


class Classify(Labelling):
    """Targets are class indices (B,), outputs are logits (B, K)."""

    name = "classify"
    main_metric = "accuracy"
    percentages = frozenset({"accuracy", "balanced_accuracy", "top5_accuracy"})

    def encode(self, targets: Sequence[int]) -> Tensor:
        classes = np.asarray(targets)
        if not classes.size:
            return torch.zeros(0, dtype=torch.int64)
        if classes.ndim != 1 or classes.dtype.kind not in "iu":
            raise VitrailError("a target of the task classify is one class number an image")
        if classes.min() < 0 or classes.max() >= self.outputs:
            raise VitrailError(
                f"the targets have class numbers {classes.min()} to {classes.max()}, "
                f"{self.outputs} labels have 0 to {self.outputs - 1}"
            )
        return torch.from_numpy(classes.astype(np.int64))

    def weights_for(self, counts: Tensor, images: int) -> Tensor:
        """1/n or 1/sqrt(n), scaled so that a training image weighs 1 on average: the learning rate stays right."""
        rarity = counts.clamp(min=1) ** (-1.0 if self.class_weights == "inverse" else -0.5)
        return rarity * images / (rarity * counts).sum()

    def loss(self, outputs: Tensor, targets: Tensor, *, mix: Mix | None = None, smoothing: float = 0.0) -> Tensor:
        """Cross-entropy -sum y log p, where y has been mixed, weighted and smoothed, averaged over the batch.

        A weight belongs to the image's class, so the share that smoothing gives away is weighted by it too, and a rare
        class does not collect a heavy share of everyone else's.
        """
        y = mixed(F.one_hot(targets, self.outputs).float(), mix) * self.label_weights(outputs.device)  # (B, K)
        y = (1 - smoothing) * y + smoothing / self.outputs * y.sum(1, keepdim=True)
        return -(y * torch.log_softmax(outputs.float(), 1)).sum(1).mean()

    def quick_metrics(self, outputs: Tensor, targets: Tensor) -> dict[str, float]:
        told = Told(*self._measurable(self.meant(outputs), targets))
        values = plain(told.metrics, len(targets))
        return {"loss": values["log_loss"], **{name: values[name] for name in ("accuracy", "balanced_accuracy")}}

    def evaluate(self, outputs: Tensor, targets: Tensor, *, bootstrap: int = 1000, seed: int = 0) -> dict[str, Any]:
        told = Told(*self._measurable(outputs, targets))
        images = len(targets)
        calibration = reliability(told.confidence, told.right)
        return {
            "task": self.name,
            "images": images,
            "main_metric": self.main_metric,
            "metrics": plain(told.metrics, images) | {"ece": calibration["ece"]},
            "intervals": bootstrap_intervals(told.metrics, images, bootstrap, seed),
            "per_label": told.per_label(self.labels),
            "worst": told.worst(self.labels),
            "confusion": told.confusion(),
            "confused_pairs": told.confused_pairs(self.labels),
            "calibration": calibration,
        }

    def answer(self, outputs: Tensor, top: int = 5) -> list[dict[str, Any]]:
        probabilities = torch.softmax(torch.from_numpy(self._numbers(outputs)), 1).numpy()
        first = np.argsort(-probabilities, axis=1, kind="stable")[:, : max(top, 1)]
        answers = []
        for p, order in zip(probabilities, first, strict=True):
            ranked = [{"label": self.labels[i], "probability": float(p[i])} for i in order]
            answers.append({**ranked[0], "top": ranked})
        return answers

    def words(self, answer: Mapping[str, Any]) -> str:
        return guesses(answer["top"])

    def row(self, answer: Mapping[str, Any]) -> dict[str, str | float]:
        """label, probability, label_2, probability_2 and so on."""
        return {
            key if place == 1 else f"{key}_{place}": value
            for place, guess in enumerate(answer["top"], start=1)
            for key, value in guess.items()
        }


class Told:
    """What the model told about M images of known class, and all that is measured from it."""

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

    def counts(self, weights: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """(K, R) each: images of the class, images that were told to be, and both."""
        support = sums_by_group(weights, self.truth, self.classes)
        predicted = sums_by_group(weights, self.guess, self.classes)
        hit_class = np.where(
            self.right, self.truth, self.classes
        )  # the mistakes are a group of their own, then dropped
        return support, predicted, sums_by_group(weights, hit_class, self.classes + 1)[:-1]

    def per_label(self, labels: Sequence[str]) -> list[dict[str, Any]]:
        """Of a class without images neither recall nor F1 is known; precision is 0 for one that was never told."""
        support, predicted, hits = (c[:, 0] for c in self.counts(np.ones((len(self.truth), 1))))
        precision, recall, f1 = ratio(hits, predicted), ratio(hits, support), ratio(2 * hits, support + predicted)
        return [
            {
                "label": label,
                "precision": float(precision[i]),
                "recall": float(recall[i]) if support[i] else None,
                "f1": float(f1[i]) if support[i] else None,
                "support": int(support[i]),
            }
            for i, label in enumerate(labels)
        ]

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
        """Images of class i (row) that were told to be of class j (column)."""
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
