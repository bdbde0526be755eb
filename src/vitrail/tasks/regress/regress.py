"""One or several numbers an image: squared error on standardised targets, answers in real units."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from vitrail.errors import VitrailError
from vitrail.tasks.agreement import Agreement, largest_difference, same_numbers
from vitrail.tasks.regress.number_answers import NumberAnswers
from vitrail.tasks.regress.number_metrics import NumberMetrics
from vitrail.tasks.regress.number_report import number_report
from vitrail.tasks.report_part import MeasuredImages, ReportPart
from vitrail.tasks.shared.answer_schemas import MAYBE_NUMBER, object_of
from vitrail.tasks.shared.intervals import Groups, measure
from vitrail.tasks.shared.metric_words import NUMBER_METRICS
from vitrail.tasks.task import Mix, Task, mixed

SAME = 0.02  # standard deviations within which two engines give the same number


class Regress(NumberAnswers, Task):
    """Targets are numbers (B, K); a training model gives them standardised, a finished one in real units."""

    title = "regression"
    metric_words = NUMBER_METRICS
    every_patch = True  # a number may be a count of what is seen
    link = "identity"
    graph_words: ClassVar[dict[str, str]] = {"values": "(B, labels) the numbers in their own units"}
    answer_schema = object_of(values={"type": "object", "additionalProperties": MAYBE_NUMBER})
    main_metric = "R2"
    quick_names = ("R2", "MAE")
    labels_are_columns = True
    classifies_images = False
    crops_and_flips = False  # a number may be a place, a size or a count
    short_run_batch = 32
    distillations = ("soft",)  # a number has no class

    def __init__(self, labels: Sequence[str], class_weights: str = "none") -> None:
        if class_weights != "none":
            raise VitrailError(f"class_weights is {class_weights!r}, but regression has no classes: set it to none")
        super().__init__(labels, class_weights)
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

    def distillation_loss(self, outputs: Tensor, answers: Tensor, kind: str, temperature: float = 1.0) -> Tensor:
        """The squared error of `loss`, with the teacher's numbers, which are in real units, in the place of the true
        ones."""
        return self.loss(outputs, answers)

    def quick_metrics(self, outputs: Tensor, targets: Tensor) -> dict[str, float]:
        predicted, true = self._measurable(self.meant(outputs), targets)
        loss = 0.5 * np.square((predicted - true) / self.std.numpy()).mean()
        return {"loss": float(loss), **self.quick_values(NumberMetrics(predicted, true).metrics, len(targets))}

    def output_scale(self) -> tuple[Tensor, Tensor]:
        return self.std, self.mean

    def evaluate(
        self, outputs: Tensor, targets: Tensor, *, bootstrap: int = 1000, seed: int = 0, groups: Groups | None = None
    ) -> dict[str, Any]:
        number_metrics = NumberMetrics(*self._measurable(outputs, targets))
        measured = measure(number_metrics.metrics, len(targets), bootstrap, seed, groups)
        return {
            **self.overall(len(targets), *measured, groups),
            "per_label": number_metrics.per_label(self.labels, *measured, seed),
            "worst": number_metrics.worst(self.labels),
            "notes": number_metrics.constants(self.labels),
        }

    def pseudo_label(self, output: Tensor) -> tuple[float, ...]:
        return tuple(output.tolist())

    def graph_outputs(self, outputs: Tensor, size: tuple[int, int]) -> dict[str, Tensor]:
        return {"values": outputs}

    def same_answers(self, reference: Sequence[Tensor], others: Sequence[Tensor]) -> Agreement:
        """A number is the same within a fiftieth of how much it varies from picture to picture (of one, of its size).

        A model that explains 95 % of the variance is off by a fifth of it.
        """
        expected, given = torch.stack(list(reference)).double(), torch.stack(list(others)).double()
        spread = expected.std(0, correction=0)
        spread = torch.where(spread > 0, spread, expected[0].abs())
        largest = largest_difference([expected / spread.clamp(min=1e-30)], [given / spread.clamp(min=1e-30)])
        same, compared = same_numbers([expected], [given], spread * SAME)
        return Agreement(same, compared, "numbers", largest, "number, in standard deviations,")

    def report(self, results: Mapping[str, Any], images: MeasuredImages) -> ReportPart:
        return number_report(results, images, self.show)
