"""What is measured of answers that are numbers: R2, MAE, RMSE, how errors are spread."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from vitrail.tasks.task import WORST

POINTS = 1000  # images whose true and predicted numbers the report draws against each other
QUANTILES = (0.0, 0.05, 0.25, 0.5, 0.75, 0.95, 1.0)
CONSTANT = 1e-12  # a spread below this share of the distance from the mean is rounding, not spread


class NumberMetrics:
    """The answers about M images of known numbers, and all that is measured from them."""

    def __init__(self, predicted: np.ndarray, true: np.ndarray) -> None:
        self.predicted, self.true = predicted, true.astype(np.float64)  # (M, K)
        self.error = self.predicted - self.true
        self.centred = self.true - self.true.mean(0)

    def metrics(self, weights: np.ndarray) -> dict[str, np.ndarray]:
        """Each (R,) for weights (M, R), averaged over the numbers, and 'each' (K, R)."""
        images = weights.sum(0)
        squared_error = np.square(self.error).T @ weights  # (K, R)
        each = {
            "R2": determination(squared_error, self.centred.T @ weights, np.square(self.centred).T @ weights, images),
            "MAE": np.abs(self.error).T @ weights / images,
            "RMSE": np.sqrt(squared_error / images),
        }
        return {name: value.mean(0) for name, value in each.items()} | {
            f"each {name}": value for name, value in each.items()
        }

    def per_label(
        self, labels: Sequence[str], values: dict[str, Any], intervals: dict[str, Any], seed: int
    ) -> list[dict[str, Any]]:
        quantiles = np.quantile(self.error, QUANTILES, axis=0)  # (7, K)
        drawn = np.random.default_rng(seed).permutation(len(self.true))[:POINTS]
        return [
            {
                "label": label,
                **{name: values[f"each {name}"][k] for name in ("R2", "MAE", "RMSE")},
                "intervals": {name: intervals[f"each {name}"][k] for name in ("R2", "MAE", "RMSE") if intervals},
                "bias": float(self.error[:, k].mean()),
                "residual_quantiles": {f"{q:g}": float(v) for q, v in zip(QUANTILES, quantiles[:, k], strict=True)},
                "points": np.stack([self.true[drawn, k], self.predicted[drawn, k]], axis=1).tolist(),
            }
            for k, label in enumerate(labels)
        ]

    def constants(self, labels: Sequence[str]) -> list[str]:
        """Sentences on the numbers that do not vary, of which R2 says nothing."""
        constant = np.flatnonzero((self.true == self.true[:1]).all(0)).tolist()
        return [f"{labels[k]} is {self.true[0, k]:g} for each of these images: its R2 says nothing" for k in constant]

    def worst(self, labels: Sequence[str]) -> list[dict[str, Any]]:
        """The images whose worst number is furthest off, in that number's spread so that units do not count."""
        spread = self.true.std(0)
        off = np.abs(self.error) / np.where(spread > 0, spread, 1.0)
        number = off.argmax(1)
        furthest = off.max(1)
        order = np.argsort(-furthest, kind="stable")[:WORST]
        return [self._miss(labels[number[i]], int(i), int(number[i])) for i in order if furthest[i] > 0]

    def _miss(self, label: str, i: int, k: int) -> dict[str, Any]:
        true, predicted = float(self.true[i, k]), float(self.predicted[i, k])
        return {
            "index": i,
            "truth": f"{label} {true:.4g}",
            "answer": f"{label} {predicted:.4g}",
            "label": label,
            "true": true,
            "predicted": predicted,
            "error": predicted - true,
        }


def determination(squared_error: np.ndarray, total: np.ndarray, squares: np.ndarray, images: np.ndarray) -> np.ndarray:
    """R2 = 1 - squared error / spread, from the weighted sums of the centred targets and of their squares.

    Targets that do not vary have no spread to explain: R2 is then 1 for answers without any error and 0 for others.
    """
    spread = squares - np.square(total) / images
    constant = spread <= CONSTANT * squares
    explained = 1 - squared_error / np.where(constant, 1.0, spread)
    return np.where(constant, (squared_error == 0).astype(float), explained)
