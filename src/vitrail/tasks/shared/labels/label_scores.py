"""What is measured of answers that are labels, whether an image has one of them or several."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import numpy as np

from vitrail.tasks.shared.intervals import ratio


class LabelScores(ABC):
    """The answers about M images whose labels are known, and all that is measured from them."""

    log_loss: np.ndarray  # (M,)

    @abstractmethod
    def metrics(self, weights: np.ndarray) -> dict[str, np.ndarray]:
        """Each (R,) for weights (M, R)."""

    @abstractmethod
    def calibration(self) -> dict[str, Any]:
        """ECE and its table, from `calibration.reliability`."""

    @abstractmethod
    def details(self, labels: Sequence[str]) -> dict[str, Any]:
        """What `evaluate` gives besides metrics and calibration: `per_label`, `worst` and what only one task has."""


def precision_recall_f1(support: np.ndarray, answered: np.ndarray, hits: np.ndarray) -> list[dict[str, Any]]:
    """A row a label from counts (K,): images that have it, that were given it, and both.

    Of a label that no image has neither recall nor F1 is known; precision is 0 for one that was never given.
    """
    precision, recall, f1 = ratio(hits, answered), ratio(hits, support), ratio(2 * hits, support + answered)
    return [
        {
            "precision": float(precision[k]),
            "recall": float(recall[k]) if support[k] else None,
            "f1": float(f1[k]) if support[k] else None,
            "support": int(support[k]),
        }
        for k in range(len(support))
    ]
