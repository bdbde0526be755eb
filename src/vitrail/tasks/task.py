"""What every task gives to training, prediction and the report, none of which needs to know which task it runs.

Two kinds of outputs: while a model trains, its outputs are in the scale that the loss likes (`loss`, `quick_metrics`
and `calibrate` take these). `fold` then rescales the last layer once, and from there on a model's outputs are what they
mean: calibrated logits, or numbers in real units (`evaluate` and `answer` take these). `meant` turns the first into the
second.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from vitrail.errors import VitrailError
from vitrail.tasks.agreement import Agreement
from vitrail.tasks.report_part import MeasuredImages, ReportPart
from vitrail.tasks.shared.intervals import Groups, Metrics, plain
from vitrail.tasks.shared.metric_words import LOSS, MetricWords, default_title
from vitrail.tasks.task_answers import TaskAnswers

WORST = 24  # mistakes that the report shows as pictures


class Mix(NamedTuple):
    """What mixup or cutmix did to a batch: image i is `ratio[i]` of itself and the rest of image `partner[i]`."""

    partner: Tensor  # (B,) indices into the batch
    ratio: Tensor  # (B,) between 0 and 1


class AnsweredPart(NamedTuple):
    """Some of the images that are measured together."""

    task: Task  # as it was when they were answered
    outputs: Tensor  # what they mean, as `evaluate` takes them
    targets: Tensor


class Task(TaskAnswers):
    """Targets, loss, metrics and answers of one kind. Made by `registry.task_for`."""

    title: ClassVar[str]  # in words: "segmentation"
    main_metric: ClassVar[str]  # picks the best epoch; higher is better
    metric_words: ClassVar[Mapping[str, MetricWords]] = {}  # the metrics' titles and meanings, for the report
    quick_names: ClassVar[tuple[str, ...]] = ()  # the metrics of every validation while a model trains
    percentages: ClassVar[frozenset[str]] = frozenset()  # the metrics that people read in per cent
    heads: ClassVar[tuple[str, ...]] = ("linear", "mlp")  # of ViTConfig, the default first
    calibrates: ClassVar[bool] = False  # whether `calibrate` or `choose_decoding` have something to fit
    dense: ClassVar[bool] = False  # whether it answers about places (see dense.py)
    every_patch: ClassVar[bool] = False  # whether it cannot be learnt from some of the patches
    answer_schema: ClassVar[Mapping[str, Any]] = {"type": "object"}  # JSON schema of an answer over HTTP
    link: ClassVar[str] = ""  # what makes an answer of a whole image's outputs: softmax, sigmoid, identity; "": none
    graph_words: ClassVar[Mapping[str, str]] = {}  # what `graph_outputs` gives, by name, with its shape
    support_noun: ClassVar[str] = "images"  # what the `support` of a label counts
    # What training chooses by. The defaults suit classes of whole images.
    labels_are_columns: ClassVar[bool] = False  # whether the labels name the columns of a table
    classifies_images: ClassVar[bool] = True  # whether labels are classes of whole images, which can be mixed
    one_class_each: ClassVar[bool] = False  # whether an image has exactly one class, so that drawing can be balanced
    crops_and_flips: ClassVar[bool] = True  # whether a target survives that its image is cropped, mirrored, recoloured
    sliding_windows: ClassVar[bool] = False  # whether images can be looked at window by window
    finds_objects: ClassVar[bool] = False  # whether the head has a limited number of candidates for objects
    # how it can learn from a teacher's answers, soft or hard, the usual one first; (): not at all
    distillations: ClassVar[tuple[str, ...]] = ()
    photo_batch: ClassVar[int] = 64  # images a step at most, where they are large
    short_run_batch: ClassVar[int] = 64  # images a step at most in a run of a few minutes

    def __init__(self, labels: Sequence[str], class_weights: str = "none") -> None:
        super().__init__(labels)
        self.class_weights = class_weights

    @abstractmethod
    def encode(self, targets: Sequence[Any]) -> Tensor:
        """The data's targets, one an image, as the tensor that `loss` and the metrics take."""

    @abstractmethod
    def fit(self, targets: Sequence[Any]) -> None:
        """Learn from the training targets, as the data gives them, what the loss needs to know before training."""

    @abstractmethod
    def state_dict(self) -> dict[str, Any]:
        """What was learned by `fit` and `calibrate`, fit for JSON."""

    @abstractmethod
    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take over the `state_dict` of another task of the same labels."""

    @abstractmethod
    def loss(self, outputs: Tensor, targets: Tensor, *, mix: Mix | None = None, smoothing: float = 0.0) -> Tensor:
        """The training loss of a batch, a scalar, in float32 whatever the outputs are."""

    def loss_counts(self, targets: Tensor) -> Tensor:
        """What the loss of a step is divided by, whole numbers (n,), counted before the model runs. They add up over
        the parts of a step and over processes. Images, where a task does not count something else."""
        return torch.tensor([len(targets)], device=targets.device)

    def loss_share(
        self, outputs: Tensor, targets: Tensor, counts: Tensor, *, mix: Mix | None = None, smoothing: float = 0.0
    ) -> Tensor:
        """What a part of a step adds to the step's loss; `counts` are the `loss_counts` of the whole step. The shares
        of all parts sum up to the `loss` of the whole: the gradient does not depend on how a batch is cut up."""
        return self.loss(outputs, targets, mix=mix, smoothing=smoothing) * (len(targets) / counts[0])

    def denoising_queries(self, targets: Tensor, keys: Tensor) -> Tensor | None:
        """Extra queries for the head in training, made from targets and keys (B,) int32; None: the head takes none."""
        return None

    def distillation_loss(self, outputs: Tensor, answers: Tensor, kind: str, temperature: float = 1.0) -> Tensor:
        """How far a training model's outputs (B, outputs) are from the answers of a teacher, the outputs of a finished
        model about the same images: a scalar, the mean over the batch. kind: one of `distillations`."""
        raise NotImplementedError(f"the task {self.name} does not learn from answers")

    @abstractmethod
    def quick_metrics(self, outputs: Tensor, targets: Tensor) -> dict[str, float]:
        """What each validation during training measures: loss, main metric and little more."""

    def quick_values(self, metrics: Metrics, images: int) -> dict[str, float]:
        """The metrics of `quick_names`, without intervals."""
        values = plain(metrics, images)
        return {name: values[name] for name in self.quick_names}

    def without_decoding_choices(self) -> Task:
        """This task as it decodes before `choose_decoding`, where that has to see what would be left out."""
        return self

    def choose_decoding(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Choose by measurement how outputs become answers. `outputs`: of a training model for the validation images,
        by the task `without_decoding_choices`. Returns them as they are with what was chosen. Before `calibrate`."""
        return self.with_decoding(outputs)

    def with_decoding(self, outputs: Tensor) -> Tensor:
        """Outputs by the task `without_decoding_choices`, as they are with what was chosen."""
        return outputs

    def calibrate(self, outputs: Tensor, targets: Tensor) -> None:
        """Fit what makes confidences right (a temperature, a threshold) on a training model's validation outputs."""

    @abstractmethod
    def output_scale(self) -> tuple[Tensor, Tensor]:
        """Scale and shift, (outputs,) each, from a training model's outputs to what they mean."""

    @abstractmethod
    def evaluate(
        self, outputs: Tensor, targets: Tensor, *, bootstrap: int = 1000, seed: int = 0, groups: Groups | None = None
    ) -> dict[str, Any]:
        """The complete measure of a finished model, fit for JSON. Every task gives `task`, `images`, `groups` (how
        many; None: each image on its own), `main_metric`, `metrics` {name: value}, `intervals` {name: [low, high]},
        `per_label` (a row a label) and `worst` (each with the image's `index` and, in words, its `truth` and its
        `answer`). `notes`, where there are any: sentences on what a metric leaves out.

        groups: the group of each image, where some belong together (`data/image_groups.py`)."""

    def metrics_of(self, parts: Sequence[AnsweredPart]) -> dict[str, float]:
        """The metrics of `evaluate` of all these images together."""
        outputs, targets = (torch.cat(some) for some in ([p.outputs for p in parts], [p.targets for p in parts]))
        return dict(self.evaluate(outputs, targets, bootstrap=0)["metrics"])

    def overall(
        self, images: int, values: Mapping[str, Any], intervals: Mapping[str, Any], groups: Groups | None
    ) -> dict[str, Any]:
        """What the results of every `evaluate` begin with. Values of "each ..." are those of labels, and left out."""
        return {
            "task": self.name,
            "images": images,
            "groups": None if groups is None else len(set(groups)),
            "main_metric": self.main_metric,
            "metrics": {name: value for name, value in values.items() if not name.startswith("each ")},
            "intervals": {name: value for name, value in intervals.items() if not name.startswith("each ")},
        }

    @abstractmethod
    def same_answers(self, reference: Sequence[Tensor], others: Sequence[Tensor]) -> Agreement:
        """How well answers of another engine agree with torch's; both are decoded outputs, one an image."""

    @abstractmethod
    def pseudo_label(self, output: Tensor) -> Any:
        """A finished model's output for one image as the data would have it: a target to measure another model by."""

    def judged_by(self, metrics: Mapping[str, float]) -> tuple[str, float]:
        """The metric of `evaluate` of which a faster model must not lose too much, and its value, 1 at best."""
        return self.main_metric, metrics[self.main_metric]

    def uncertainty(self, outputs: Tensor) -> Tensor | None:
        """(B,) from 0 to 1: how unsure a finished model is of each image, by its outputs (B, ...) before decoding. None
        where the outputs do not say."""
        return None

    def expected_score(self, reference: Sequence[Tensor], outputs: Sequence[Tensor]) -> float | None:
        """The metric of `judged_by` that answers lead to expect if the reference's probabilities are right; both are
        outputs (1, ...), one an image. None: the outputs are no probabilities that would tell."""
        return None

    @abstractmethod
    def graph_outputs(self, outputs: Tensor, size: tuple[int, int]) -> dict[str, Tensor]:
        """A finished model's outputs (B, ...) as a file for other runtimes gives them, by the names of `graph_words`:
        tensors of static shape but for B, by operations that torch.export takes. size: (height, width) of the input.
        """

    def png_arrays(self, answer: Mapping[str, Any]) -> dict[str, NDArray[Any]]:
        """The arrays (H, W) of an answer by name, as whole numbers that a PNG can hold: what the HTTP API sends."""
        return {name: value for name, value in answer.items() if isinstance(value, np.ndarray)}

    def show(self, metric: str, value: float) -> str:
        """A metric's value as people read it: '93.1 %' or '0.842'."""
        return f"{100 * value:.1f} %" if metric in self.percentages else f"{value:.4g}"

    def title_of(self, metric: str) -> str:
        """What a metric is called on a page."""
        known = {"loss": LOSS, **self.metric_words}
        return known[metric].title if metric in known else default_title(metric)

    def meaning_of(self, metric: str) -> str:
        """What a metric means, in one line; "" where nobody says it."""
        return self.metric_words[metric].meaning if metric in self.metric_words else ""

    # ---- the report of a run

    @abstractmethod
    def report(self, results: Mapping[str, Any], images: MeasuredImages) -> ReportPart:
        """The part of the report that only this task has. `results`: what `evaluate` returned."""

    def report_tiles(self, results: Mapping[str, Any]) -> list[tuple[str, str]]:
        """Numbers that matter at first sight, each with what it is."""
        return []

    def baseline(self, results: Mapping[str, Any]) -> str:
        """A sentence on the score of a constant answer, without looking at images; "" where it is not known."""
        return ""

    def meant(self, outputs: Tensor) -> Tensor:
        """A training model's outputs as the finished model will give them."""
        scale, shift = self.output_scale()
        return outputs.detach().cpu().double() * scale + shift

    @torch.no_grad()
    def fold(self, layer: nn.Linear) -> None:
        """Rescale a trained model's last layer so that its outputs are what they mean. Do it once."""
        scale, shift = self._scale_for(layer)
        layer.weight.mul_(scale[:, None])
        if layer.bias is not None:
            layer.bias.mul_(scale).add_(shift)

    @torch.no_grad()
    def unfold(self, layer: nn.Linear) -> None:
        """The reverse of `fold`, to train a finished model further."""
        scale, shift = self._scale_for(layer)
        if layer.bias is not None:
            layer.bias.sub_(shift).div_(scale)
        layer.weight.div_(scale[:, None])

    def _scale_for(self, layer: nn.Linear) -> tuple[Tensor, Tensor]:
        """`output_scale` in the layer's dtype and device, after the check that the layer can hold the shift."""
        scale, shift = (part.to(layer.weight.dtype).to(layer.weight.device) for part in self.output_scale())
        if layer.bias is None and shift.any():
            raise VitrailError(f"the task {self.name} needs a head with a bias: set head_bias to true")
        return scale, shift

    def _measurable(self, outputs: Tensor, targets: Tensor) -> tuple[np.ndarray, np.ndarray]:
        """Outputs and targets as arrays, after the check that they belong together."""
        if len(outputs) != len(targets):
            raise VitrailError(f"there are {len(outputs)} outputs for {len(targets)} targets")
        if not len(outputs):
            raise VitrailError("there is no image to measure the model on: give it at least one with its label")
        return self._numbers(outputs), targets.detach().cpu().numpy()


def mixed(targets: Tensor, mix: Mix | None) -> Tensor:
    """(B, K) targets of the mixed images: each its own share and its partner's."""
    if mix is None:
        return targets
    ratio = mix.ratio.to(targets)[:, None]
    return ratio * targets + (1 - ratio) * targets[mix.partner]
