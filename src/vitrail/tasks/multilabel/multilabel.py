"""Any number of labels an image: a sigmoid each, binary cross-entropy, mean average precision."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from vitrail.errors import VitrailError
from vitrail.tasks.agreement import MOST_PROBABILITY, Agreement, largest_difference
from vitrail.tasks.multilabel.label_answers import LabelAnswers
from vitrail.tasks.multilabel.label_metrics import LabelMetrics
from vitrail.tasks.report_part import MeasuredImages, ReportPart
from vitrail.tasks.shared.answer_schemas import GUESSES, TEXT, list_of, object_of
from vitrail.tasks.shared.entropy import binary_entropy
from vitrail.tasks.shared.labels.label_report import label_report
from vitrail.tasks.shared.labels.labelling import Labelling
from vitrail.tasks.shared.metric_words import LABEL_METRICS, MetricWords
from vitrail.tasks.task import Mix, mixed

HEAVIEST = 100.0  # what a positive may weigh: a label that occurs once in 100,000 images must not blow up the step


class MultiLabel(LabelAnswers, Labelling):
    """Targets are 0/1 (B, K), outputs are logits (B, K). A label is given when its probability is above 0.5."""

    title = "multi-label classification"
    link = "sigmoid"
    graph_words: ClassVar[dict[str, str]] = {
        "probabilities": "(B, labels) of each label by itself; above 0.5 it is given"
    }
    answer_schema = object_of(labels=list_of(TEXT), top=GUESSES)
    main_metric = "mAP"
    quick_names = ("mAP", "micro_f1")
    percentages = frozenset({"exact_match"})
    distillations = ("soft", "hard")

    metric_words = LABEL_METRICS | {
        "mAP": MetricWords(
            "mAP", "mean average precision: how well each label ranks the images that have it before the others"
        ),
        "micro_f1": MetricWords("Micro F1", "F1 over all labels of all images taken together"),
        "exact_match": MetricWords("Exact match", "how many images were given all their labels and no other"),
    }

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

    def distillation_loss(self, outputs: Tensor, answers: Tensor, kind: str, temperature: float = 1.0) -> Tensor:
        """Label by label, as `loss`. hard: cross-entropy with the labels that the teacher gives. soft: the KL
        divergence of the two sigmoids at a temperature T, times T^2."""
        student, teacher = outputs.float() / temperature, answers.float() / temperature
        if kind == "hard":
            return F.binary_cross_entropy_with_logits(outputs.float(), (answers > 0).float())
        p = teacher.sigmoid()
        entropy = F.binary_cross_entropy_with_logits(teacher, p)
        return (F.binary_cross_entropy_with_logits(student, p) - entropy) * temperature**2

    def scores(self, logits: np.ndarray, targets: np.ndarray) -> LabelMetrics:
        return LabelMetrics(logits, targets)

    def uncertainty(self, outputs: Tensor) -> Tensor:
        """Of the label that is least certain: most labels of an image are surely not there."""
        return binary_entropy(outputs.double().sigmoid()).amax(1)

    def pseudo_label(self, output: Tensor) -> tuple[int, ...]:
        return tuple(torch.nonzero(output > 0).flatten().tolist())

    def graph_outputs(self, outputs: Tensor, size: tuple[int, int]) -> dict[str, Tensor]:
        return {"probabilities": outputs.sigmoid()}

    def same_answers(self, reference: Sequence[Tensor], others: Sequence[Tensor]) -> Agreement:
        """Given or not, label by label."""
        expected, given = torch.stack(list(reference)).double(), torch.stack(list(others)).double()
        largest = largest_difference([expected.sigmoid()], [given.sigmoid()])
        return Agreement(
            int(((expected > 0) == (given > 0)).sum()),
            expected.numel(),
            "labels",
            largest,
            "probability",
            MOST_PROBABILITY,
        )

    def report(self, results: Mapping[str, Any], images: MeasuredImages) -> ReportPart:
        surprising = "The images whose labels surprised the model most."
        return label_report(results, images, noun="label", mistakes_are=surprising, several=True)

    def report_tiles(self, results: Mapping[str, Any]) -> list[tuple[str, str]]:
        return [(f"{round(results['images'] * (1 - results['metrics']['exact_match'])):,}", "with a mistake")]
