"""One label an image: softmax, cross-entropy, accuracy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from vitrail.errors import VitrailError
from vitrail.tasks.agreement import MOST_PROBABILITY, Agreement, largest_difference
from vitrail.tasks.classify.class_answers import ClassAnswers
from vitrail.tasks.classify.class_metrics import ClassMetrics
from vitrail.tasks.report_part import MeasuredImages, ReportPart
from vitrail.tasks.shared.answer_schemas import GUESSES, MAYBE_PROBABILITY, TEXT, object_of
from vitrail.tasks.shared.entropy import entropy
from vitrail.tasks.shared.labels.label_report import label_report
from vitrail.tasks.shared.labels.labelling import Labelling
from vitrail.tasks.shared.metric_words import LABEL_METRICS, MetricWords
from vitrail.tasks.task import Mix, mixed


class Classify(ClassAnswers, Labelling):
    """Targets are class indices (B,), outputs are logits (B, K)."""

    title = "classification"
    link = "softmax"
    graph_words: ClassVar[dict[str, str]] = {"probabilities": "(B, labels) of each label in their order; they sum to 1"}
    answer_schema = object_of(label=TEXT, probability=MAYBE_PROBABILITY, top=GUESSES)
    main_metric = "accuracy"
    quick_names = ("accuracy", "balanced_accuracy")
    one_class_each = True
    distillations = ("soft", "hard")
    percentages = frozenset({"accuracy", "balanced_accuracy", "top5_accuracy"})

    metric_words = LABEL_METRICS | {
        "accuracy": MetricWords("Accuracy", "how many of all images were given the right class"),
        "balanced_accuracy": MetricWords(
            "Balanced accuracy", "the mean of the classes' recalls: each class counts the same, however rare"
        ),
        "top5_accuracy": MetricWords("Top-5 accuracy", "how often the right class was among the five most probable"),
    }

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

    def distillation_loss(self, outputs: Tensor, answers: Tensor, kind: str, temperature: float = 1.0) -> Tensor:
        """hard: cross-entropy with the teacher's class, as DeiT has it. soft: KL(teacher || student) of probabilities
        at a temperature T, times T^2, so that its gradient stays as large (Hinton)."""
        if kind == "hard":
            return F.cross_entropy(outputs.float(), answers.argmax(1))
        student, teacher = (torch.log_softmax(logits.float() / temperature, 1) for logits in (outputs, answers))
        return F.kl_div(student, teacher, reduction="batchmean", log_target=True) * temperature**2

    def scores(self, logits: np.ndarray, targets: np.ndarray) -> ClassMetrics:
        return ClassMetrics(logits, targets)

    def uncertainty(self, outputs: Tensor) -> Tensor:
        return entropy(outputs.double().softmax(1), 1)

    def pseudo_label(self, output: Tensor) -> int:
        return int(output.argmax())

    def expected_score(self, reference: Sequence[Tensor], outputs: Sequence[Tensor]) -> float:
        """Accuracy: an answer that moves from a class with 41 % to one with 40 % loses a hundredth of an image."""
        wanted = torch.softmax(torch.cat(list(reference)).double(), -1)  # (N, K)
        answers = torch.cat(list(outputs)).argmax(-1, keepdim=True)
        return float(wanted.gather(-1, answers).mean())

    def graph_outputs(self, outputs: Tensor, size: tuple[int, int]) -> dict[str, Tensor]:
        return {"probabilities": outputs.softmax(-1)}

    def same_answers(self, reference: Sequence[Tensor], others: Sequence[Tensor]) -> Agreement:
        """The first guess, picture by picture."""
        expected, given = torch.stack(list(reference)).double(), torch.stack(list(others)).double()
        largest = largest_difference([expected.softmax(1)], [given.softmax(1)])
        same = int((expected.argmax(1) == given.argmax(1)).sum())
        return Agreement(same, len(expected), "pictures", largest, "probability", MOST_PROBABILITY)

    def report(self, results: Mapping[str, Any], images: MeasuredImages) -> ReportPart:
        surest = "The mistakes that the model was most sure of."
        return label_report(results, images, noun="class", mistakes_are=surest, several=False)

    def report_tiles(self, results: Mapping[str, Any]) -> list[tuple[str, str]]:
        return [(f"{round(results['images'] * (1 - results['metrics']['accuracy'])):,}", "answered wrong")]

    def baseline(self, results: Mapping[str, Any]) -> str:
        most = max(results["per_label"], key=lambda row: row["support"])
        share = self.show("accuracy", most["support"] / results["images"])
        return f"Always answering the most frequent class, {most['label']}, would score {share}."
