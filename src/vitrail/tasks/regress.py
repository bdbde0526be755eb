"""One or several numbers an image: squared error on standardised targets, answers in real units."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from vitrail.errors import VitrailError
from vitrail.tasks.intervals import bootstrap as bootstrap_intervals
from vitrail.tasks.intervals import plain
from vitrail.tasks.task import WORST, Mix, Task, mixed

POINTS = 1000  # images whose true and predicted numbers the report draws against each other
QUANTILES = (0.0, 0.05, 0.25, 0.5, 0.75, 0.95, 1.0)
CONSTANT = 1e-12  # a spread below this share of the distance from the mean is rounding, not spread


class Regress(Task):
    """Targets are numbers (B, K); a training model gives them standardised, a finished one in real units."""

    name = "regress"
    every_patch = True  # a number may be a count of what is seen
    main_metric = "R2"

    def __init__(self, labels: Sequence[str]) -> None:
        super().__init__(labels)
        if len(set(self.labels)) != len(self.labels):
            raise VitrailError("two of the numbers have the same name: rename one of the columns")
        self.mean = torch.zeros(self.outputs, dtype=torch.float64)
        self.std = torch.ones(self.outputs, dtype=torch.float64)

    def encode(self, targets: Sequence[Sequence[float]]) -> Tensor:
        numbers = torch.from_numpy(self._table(targets)).float()
        if not torch.isfinite(numbers).all():
            raise VitrailError("a target is missing, infinite or above 1e38: give every image its numbers")
        return numbers

    def _table(self, targets: Sequence[Sequence[float]]) -> np.ndarray:
        if not len(targets):
            return np.zeros((0, self.outputs))
        try:
            table = np.asarray(targets, dtype=np.float64)
        except (TypeError, ValueError):
            table = np.empty(0)
        if table.shape != (len(targets), self.outputs):
            raise VitrailError(f"a target of the task regress is a list of {self.outputs} numbers an image")
        return table

    def fit(self, targets: Sequence[Sequence[float]]) -> None:
        """Mean and standard deviation of each number; a number that never changes keeps its scale."""
        self.encode(targets)
        table = self._table(targets)
        if not len(table):
            raise VitrailError("there is no training target to learn mean and spread from")
        constant = table.min(0) == table.max(0)
        self.mean = torch.from_numpy(np.where(constant, table[0], table.mean(0)))
        self.std = torch.from_numpy(np.where(constant, 1.0, table.std(0)))

    def state_dict(self) -> dict[str, Any]:
        return {"mean": self.mean.tolist(), "std": self.std.tolist()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        mean, std = (torch.tensor(state[key], dtype=torch.float64) for key in ("mean", "std"))
        if mean.shape != (self.outputs,) or std.shape != (self.outputs,):
            raise VitrailError(f"the saved state describes {len(mean)} numbers, this task has {self.outputs}")
        self.mean, self.std = mean, std

    def loss(self, outputs: Tensor, targets: Tensor, *, mix: Mix | None = None, smoothing: float = 0.0) -> Tensor:
        """1/2 (y' - y)^2 with standardised, mixed y, averaged over batch and numbers. There is nothing to smooth."""
        mean, std = (x.float().to(outputs.device) for x in (self.mean, self.std))
        y = mixed((targets.float() - mean) / std, mix)
        return 0.5 * (outputs.float() - y).square().mean()

    def quick_metrics(self, outputs: Tensor, targets: Tensor) -> dict[str, float]:
        predicted, true = self._measurable(self.meant(outputs), targets)
        values = plain(Told(predicted, true).metrics, len(targets))
        loss = 0.5 * np.square((predicted - true) / self.std.numpy()).mean()
        return {"loss": float(loss), **{name: values[name] for name in ("R2", "MAE")}}

    def output_scale(self) -> tuple[Tensor, Tensor]:
        return self.std, self.mean

    def evaluate(self, outputs: Tensor, targets: Tensor, *, bootstrap: int = 1000, seed: int = 0) -> dict[str, Any]:
        told = Told(*self._measurable(outputs, targets))
        images = len(targets)
        values = plain(told.metrics, images)
        intervals = bootstrap_intervals(told.metrics, images, bootstrap, seed)
        return {
            "task": self.name,
            "images": images,
            "main_metric": self.main_metric,
            "metrics": {name: value for name, value in values.items() if not name.startswith("each ")},
            "intervals": {name: value for name, value in intervals.items() if not name.startswith("each ")},
            "per_label": told.per_label(self.labels, values, intervals, seed),
            "worst": told.worst(self.labels),
        }

    def answer(self, outputs: Tensor, top: int = 5) -> list[dict[str, Any]]:
        return [{"values": dict(zip(self.labels, row, strict=True))} for row in self._numbers(outputs).tolist()]

    def words(self, answer: Mapping[str, Any]) -> str:
        return ", ".join(f"{name} {value:.6g}" for name, value in answer["values"].items())

    def row(self, answer: Mapping[str, Any]) -> dict[str, str | float]:
        return dict(answer["values"])


class Told:
    """What the model told about M images of known numbers, and all that is measured from it."""

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
