"""What the tasks that give labels share: how often each label occurs, and how sure the answers are."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from vitrail.errors import VitrailError
from vitrail.tasks.shared.intervals import Groups, measure
from vitrail.tasks.shared.labels.calibration import fit_temperature
from vitrail.tasks.shared.labels.label_scores import LabelScores
from vitrail.tasks.task import AnsweredPart, Task

CLASS_WEIGHTS = ("none", "inverse", "sqrt")
OF_PROBABILITIES = ("log_loss", "ece")  # the metrics that a temperature changes


class Labelling(Task):
    """A task whose outputs are logits of labels: weights against imbalance, and a temperature."""

    calibrates = True

    def __init__(self, labels: Sequence[str], class_weights: str = "none") -> None:
        super().__init__(labels, class_weights)
        if class_weights not in CLASS_WEIGHTS:
            raise VitrailError(f"class_weights is {class_weights!r}; choose one of {', '.join(CLASS_WEIGHTS)}")
        self.images = 0  # in training
        self.counts: list[int] = []  # of these, how many have each label
        self.temperature = 1.0
        self.weights = torch.ones(self.outputs)

    @abstractmethod
    def weights_for(self, counts: Tensor, images: int) -> Tensor:
        """(K,) what a label weighs in the loss, the rarer the more, from how many of the images have it."""

    @abstractmethod
    def scores(self, logits: np.ndarray, targets: np.ndarray) -> LabelScores:
        """All that is measured of a finished model's outputs (M, K)."""

    def quick_metrics(self, outputs: Tensor, targets: Tensor) -> dict[str, float]:
        scores = self.scores(*self._measurable(self.meant(outputs), targets))
        return {"loss": float(scores.log_loss.mean()), **self.quick_values(scores.metrics, len(targets))}

    def evaluate(
        self, outputs: Tensor, targets: Tensor, *, bootstrap: int = 1000, seed: int = 0, groups: Groups | None = None
    ) -> dict[str, Any]:
        scores = self.scores(*self._measurable(outputs, targets))
        values, intervals = measure(scores.metrics, len(targets), bootstrap, seed, groups)
        calibration = scores.calibration()
        return {
            **self.overall(len(targets), values | {"ece": calibration["ece"]}, intervals, groups),
            **scores.details(self.labels),
            "calibration": calibration,
        }

    def metrics_of(self, parts: Sequence[AnsweredPart]) -> dict[str, float]:
        """A temperature changes what is measured of probabilities, and nothing else; but two of them would change which
        of two images comes first."""
        as_trained = [part._replace(outputs=part.outputs * _temperature(part.task)) for part in parts]
        calibrated = super().metrics_of(parts)
        return super().metrics_of(as_trained) | {name: calibrated[name] for name in OF_PROBABILITIES}

    def fit(self, targets: Sequence[Any]) -> None:
        encoded = self.encode(targets)
        if encoded.dim() == 1:
            counts = torch.bincount(encoded, minlength=self.outputs)
        else:
            counts = encoded.double().sum(0).long()  # float32 stops counting at 16 million
        self.load_state_dict({"images": len(encoded), "counts": counts.tolist(), "temperature": 1.0})

    def calibrate(self, outputs: Tensor, targets: Tensor) -> None:
        self._measurable(outputs, targets)
        self.temperature = fit_temperature(outputs, targets)

    def state_dict(self) -> dict[str, Any]:
        return {"images": self.images, "counts": list(self.counts), "temperature": self.temperature}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        counts = list(state["counts"])
        if counts and len(counts) != self.outputs:
            raise VitrailError(f"the saved state counts {len(counts)} labels, this task has {self.outputs}")
        self.images, self.counts, self.temperature = state["images"], counts, state["temperature"]
        if counts and self.class_weights != "none":
            self.weights = self.weights_for(torch.tensor(counts, dtype=torch.float64), self.images).float()

    def output_scale(self) -> tuple[Tensor, Tensor]:
        scale = torch.full((self.outputs,), 1 / self.temperature, dtype=torch.float64)
        return scale, torch.zeros_like(scale)

    def label_weights(self, device: torch.device) -> Tensor:
        """(K,) weights for the loss."""
        if self.class_weights != "none" and not self.counts:
            raise RuntimeError("class weights come from the training targets: call fit(targets) before loss")
        return self.weights.to(device)


def _temperature(task: Task) -> float:
    return task.temperature if isinstance(task, Labelling) else 1.0
