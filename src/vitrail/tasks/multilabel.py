"""Any number of labels an image: a sigmoid each, binary cross-entropy, mean average precision."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import chain
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

HEAVIEST = 100.0  # what a positive may weigh: a label that occurs once in 100,000 images must not blow up the step


class MultiLabel(Labelling):
    """Targets are 0/1 (B, K), outputs are logits (B, K). A label is given when its probability is above 0.5."""

    name = "multilabel"
    main_metric = "mAP"
    percentages = frozenset({"exact_match"})

    def encode(self, targets: Sequence[Sequence[int]]) -> Tensor:
        encoded = torch.zeros(len(targets), self.outputs)
        try:
            images = np.repeat(np.arange(len(targets)), [len(labels) for labels in targets])
        except TypeError:
            raise VitrailError("a target of the task multilabel is a list of label numbers an image") from None
        labels = np.asarray(list(chain.from_iterable(targets)))
        if not labels.size:
            return encoded
        if labels.dtype.kind not in "iu":
            raise VitrailError("a target of the task multilabel is a list of label numbers an image")
        if labels.min() < 0 or labels.max() >= self.outputs:
            raise VitrailError(
                f"the targets have label numbers {labels.min()} to {labels.max()}, "
                f"{self.outputs} labels have 0 to {self.outputs - 1}"
            )
        encoded[images, labels] = 1.0
        return encoded

    def weights_for(self, counts: Tensor, images: int) -> Tensor:
        """Images without the label over those with it, or the root of that; 1 for a label that never occurs."""
        odds = torch.where(counts > 0, (images - counts) / counts.clamp(min=1), 1.0)
        if self.class_weights == "sqrt":
            odds = odds.sqrt()
        return odds.clamp(1 / HEAVIEST, HEAVIEST)

    def loss(self, outputs: Tensor, targets: Tensor, *, mix: Mix | None = None, smoothing: float = 0.0) -> Tensor:
        """-(w y log p + (1 - y) log (1 - p)), where y has been mixed and smoothed, averaged over batch and labels."""
        y = (1 - smoothing) * mixed(targets.float(), mix) + smoothing / 2
        return F.binary_cross_entropy_with_logits(outputs.float(), y, pos_weight=self.label_weights(outputs.device))

    def quick_metrics(self, outputs: Tensor, targets: Tensor) -> dict[str, float]:
        told = Told(*self._measurable(self.meant(outputs), targets))
        values = plain(told.metrics, len(targets))
        return {"loss": values["log_loss"], **{name: values[name] for name in ("mAP", "micro_f1")}}

    def evaluate(self, outputs: Tensor, targets: Tensor, *, bootstrap: int = 1000, seed: int = 0) -> dict[str, Any]:
        told = Told(*self._measurable(outputs, targets))
        images = len(targets)
        calibration = reliability(told.probability.ravel(), told.truth.ravel())
        return {
            "task": self.name,
            "images": images,
            "main_metric": self.main_metric,
            "metrics": plain(told.metrics, images) | {"ece": calibration["ece"]},
            "intervals": bootstrap_intervals(told.metrics, images, bootstrap, seed),
            "per_label": told.per_label(self.labels),
            "worst": told.worst(self.labels),
            "calibration": calibration,
        }

    def answer(self, outputs: Tensor, top: int = 5) -> list[dict[str, Any]]:
        """`labels` are those above 0.5, `top` the most probable ones: as many as asked, but all that are above 0.5."""
        logits = self._numbers(outputs)
        answers = []
        for z, p in zip(logits, torch.sigmoid(torch.from_numpy(logits)).tolist(), strict=True):
            order = np.argsort(-z, kind="stable")
            given = int((z > 0).sum())
            answers.append(
                {
                    "labels": [self.labels[i] for i in order[:given]],
                    "top": [{"label": self.labels[i], "probability": p[i]} for i in order[: max(top, given)]],
                }
            )
        return answers

    def words(self, answer: Mapping[str, Any]) -> str:
        given = len(answer["labels"])
        return guesses(answer["top"][:given]) if given else f"no label (at best {guesses(answer['top'][:1])})"

    def row(self, answer: Mapping[str, Any]) -> dict[str, str | float]:
        """The given labels with | between, as a label file has them, and their probabilities likewise."""
        given = answer["top"][: len(answer["labels"])]
        probabilities = "|".join(f"{guess['probability']:.4g}" for guess in given)
        return {"labels": "|".join(answer["labels"]), "probabilities": probabilities}


class Told:
    """What the model told about M images of known labels, and all that is measured from it."""

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
        support, given, hits = self.counts(weights)
        occurring = (support > 0).sum(0)
        average_precision = np.stack([ranking.average_precision(weights) for ranking in self.rankings])
        return {
            "mAP": ratio(average_precision.sum(0), occurring),
            "micro_f1": ratio(2 * hits.sum(0), support.sum(0) + given.sum(0)),
            "macro_f1": ratio(ratio(2 * hits, support + given).sum(0), occurring),
            "exact_match": self.exact @ weights / images,
            "log_loss": self.log_loss @ weights / images,
        }

    def counts(self, weights: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """(K, R) each: images that have the label, that were given it, and both."""
        support, given, hits = (x.T.astype(float) @ weights for x in (self.truth, self.given, self.truth & self.given))
        return support, given, hits

    def per_label(self, labels: Sequence[str]) -> list[dict[str, Any]]:
        """Of a label without images only precision, which is 0, and calibration are known."""
        ones = np.ones((len(self.truth), 1))
        support, given, hits = (c[:, 0] for c in self.counts(ones))
        precision, recall, f1 = ratio(hits, given), ratio(hits, support), ratio(2 * hits, support + given)
        return [
            {
                "label": label,
                "average_precision": float(self.rankings[k].average_precision(ones)[0]) if support[k] else None,
                "precision": float(precision[k]),
                "recall": float(recall[k]) if support[k] else None,
                "f1": float(f1[k]) if support[k] else None,
                "support": int(support[k]),
                "ece": reliability(self.probability[:, k], self.truth[:, k])["ece"],
            }
            for k, label in enumerate(labels)
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
        seen = sums_by_group(weights, self.step, self.steps + 1)[:-1].cumsum(0)  # (steps, R)
        found = sums_by_group(weights.take(self.true, axis=0), self.step[self.true], self.steps)
        hits = found.cumsum(0)
        return ratio((found * ratio(hits, seen)).sum(0), hits[-1])
