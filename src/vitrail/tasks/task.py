"""What every task gives to training, prediction and the report, none of which needs to know which task it runs.

Two kinds of outputs: while a model trains, its outputs are in the scale that the loss likes (`loss`, `quick_metrics`
and `calibrate` take these). `fold` then rescales the last layer once, and from there on a model's outputs are what they
mean: calibrated logits, or numbers in real units (`evaluate` and `answer` take these). `meant` turns the first into the
second.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from vitrail.errors import VitrailError


class NotFinite(VitrailError):
    """A model gave something else than numbers."""


WORST = 24  # mistakes that the report shows as pictures


class Mix(NamedTuple):
    """What mixup or cutmix did to a batch: image i is `ratio[i]` of itself and the rest of image `partner[i]`."""

    partner: Tensor  # (B,) indices into the batch
    ratio: Tensor  # (B,) between 0 and 1


class Task(ABC):
    """Targets, loss, metrics and answers of one kind. Made by `task_for`."""

    name: ClassVar[str]
    main_metric: ClassVar[str]  # picks the best epoch; higher is better
    percentages: ClassVar[frozenset[str]] = frozenset()  # the metrics that people read in per cent
    dense: ClassVar[bool] = False  # whether it answers about places (see dense.py)
    every_patch: ClassVar[bool] = False  # whether it cannot be learnt from some of the patches

    def __init__(self, labels: Sequence[str]) -> None:
        self.labels = list(labels)
        if not self.labels:
            raise VitrailError(f"the task {self.name} needs at least one label")

    @property
    def outputs(self) -> int:
        """How many numbers the model gives for an image."""
        return len(self.labels)

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
        """Go on with what another task of the same labels learned."""

    @abstractmethod
    def loss(self, outputs: Tensor, targets: Tensor, *, mix: Mix | None = None, smoothing: float = 0.0) -> Tensor:
        """The training loss of a batch, a scalar, in float32 whatever the outputs are."""

    def hints(self, targets: Tensor, seed: int) -> Tensor | None:
        """What the head is given in training besides the images: a function of the targets and the seed."""
        return None

    @abstractmethod
    def quick_metrics(self, outputs: Tensor, targets: Tensor) -> dict[str, float]:
        """What an epoch's validation tells of a training model: loss, main metric and little more."""

    def calibrate(self, outputs: Tensor, targets: Tensor) -> None:  # noqa: B027  most tasks have nothing to do here
        """Learn from a training model's validation outputs how sure they should be."""

    @abstractmethod
    def output_scale(self) -> tuple[Tensor, Tensor]:
        """Scale and shift, (outputs,) each, from a training model's outputs to what they mean."""

    @abstractmethod
    def evaluate(self, outputs: Tensor, targets: Tensor, *, bootstrap: int = 1000, seed: int = 0) -> dict[str, Any]:
        """The complete measure of a finished model, fit for JSON. Every task gives `task`, `images`, `main_metric`,
        `metrics` {name: value}, `intervals` {name: [low, high]}, `per_label` (a row a label) and `worst` (each with the
        image's `index` and, in words, its `truth` and its `answer`)."""

    @abstractmethod
    def answer(self, outputs: Tensor, top: int = 5) -> list[dict[str, Any]]:
        """What a finished model says about each image, fit for JSON."""

    def columns(self, top: int = 5) -> list[str]:
        """The names of what `row` gives, the same for every answer."""
        return list(self.row(self.answer(torch.zeros(1, self.outputs), top)[0]))

    @abstractmethod
    def words(self, answer: Mapping[str, Any]) -> str:
        """One answer as a line of text."""

    @abstractmethod
    def row(self, answer: Mapping[str, Any]) -> dict[str, str | float]:
        """One answer as a flat row, for a CSV file or a line of text."""

    def show(self, metric: str, value: float) -> str:
        """A metric's value as people read it: '93.1 %' or '0.842'."""
        return f"{100 * value:.1f} %" if metric in self.percentages else f"{value:.4g}"

    def meant(self, outputs: Tensor) -> Tensor:
        """A training model's outputs as the finished model will give them."""
        scale, shift = self.output_scale()
        return outputs.detach().cpu().double() * scale + shift

    @torch.no_grad()
    def fold(self, layer: nn.Linear) -> None:
        """Rescale a trained model's last layer so that its outputs are what they mean. Do it once."""
        scale, shift = (part.to(layer.weight.dtype).to(layer.weight.device) for part in self.output_scale())
        self._check_bias(layer, shift)
        layer.weight.mul_(scale[:, None])
        if layer.bias is not None:
            layer.bias.mul_(scale).add_(shift)

    @torch.no_grad()
    def unfold(self, layer: nn.Linear) -> None:
        """The reverse of `fold`, to train a finished model further."""
        scale, shift = (part.to(layer.weight.dtype).to(layer.weight.device) for part in self.output_scale())
        self._check_bias(layer, shift)
        layer.weight.div_(scale[:, None])
        if layer.bias is not None:
            layer.bias.sub_(shift).div_(scale)

    def _check_bias(self, layer: nn.Linear, shift: Tensor) -> None:
        if layer.bias is None and shift.any():
            raise VitrailError(f"the task {self.name} needs a head with a bias: set head_bias to true")

    def _numbers(self, outputs: Tensor) -> np.ndarray:
        """Outputs (M, outputs) in float64, after the check that they are numbers."""
        if outputs.dim() != 2 or outputs.shape[1] != self.outputs:
            raise VitrailError(
                f"the model's outputs have shape {tuple(outputs.shape)}, {self.outputs} labels need "
                f"(images, {self.outputs})"
            )
        numbers = outputs.detach().cpu().double().numpy()
        broken = np.flatnonzero(~np.isfinite(numbers).all(axis=1))
        if broken.size:
            raise NotFinite(
                f"the model's outputs are not finite for {broken.size} of {len(numbers)} images (the first is number "
                f"{broken[0] + 1}): train it again with a lower learning rate, or load another model file"
            )
        return numbers

    def _measurable(self, outputs: Tensor, targets: Tensor) -> tuple[np.ndarray, np.ndarray]:
        """Outputs and targets as arrays, after the check that they belong together."""
        if len(outputs) != len(targets):
            raise VitrailError(f"there are {len(outputs)} outputs for {len(targets)} targets")
        if not len(outputs):
            raise VitrailError("there is no image to measure the model on: give it at least one with its label")
        return self._numbers(outputs), targets.detach().cpu().numpy()


def task_for(name: str, labels: Sequence[str], class_weights: str = "none") -> Task:
    """The task of that name. Labels, in the order of the outputs: class names, or the names of regression's numbers."""
    from vitrail.tasks.classify import Classify
    from vitrail.tasks.detect import Detect
    from vitrail.tasks.multilabel import MultiLabel
    from vitrail.tasks.regress import Regress
    from vitrail.tasks.segment import Segment

    if name == Regress.name:
        if class_weights != "none":
            raise VitrailError(f"class_weights is {class_weights!r}, but regression has no classes: set it to none")
        return Regress(labels)
    kinds = (Classify, MultiLabel, Segment, Detect)
    for task in kinds:
        if name == task.name:
            return task(labels, class_weights)
    raise VitrailError(f"the task is {name!r}; choose one of {', '.join(sorted(k.name for k in (*kinds, Regress)))}")


def mixed(targets: Tensor, mix: Mix | None) -> Tensor:
    """(B, K) targets of the mixed images: each its own share and its partner's."""
    if mix is None:
        return targets
    ratio = mix.ratio.to(targets)[:, None]
    return ratio * targets + (1 - ratio) * targets[mix.partner]
