"""What every method of learning without labels gives to the loop."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from vitrail.model.vit import ViT
from vitrail.training.distributed import Processes

GLOBAL_VIEWS = 2  # of an image, where a method has several views: the first ones


@dataclass(frozen=True)
class Moment:
    """How far a run is, when a step is made."""

    step: int
    steps: int
    seed: int  # of the run


class Method(nn.Module, ABC):
    """All that learns and all that is remembered, as one module: its state is what a checkpoint holds."""

    student: ViT
    resting_loss: float | None = None  # where the loss rests when nothing is learnt

    @property
    @abstractmethod
    def encoder(self) -> ViT:
        """The network that is measured and kept."""

    @abstractmethod
    def forward(self, views: Sequence[Tensor], keep: Tensor | None, moment: Moment) -> Tensor:
        """Views of the same B images, (B, C, h, w) each, the global ones first -> the loss, a scalar.
        keep (K,): the patches that the student sees of global views; None: all."""

    def other_parameters(self) -> Iterator[tuple[str, nn.Parameter]]:
        """What is trained beside the student."""
        own = {id(parameter) for parameter in self.student.parameters()}
        for name, parameter in self.named_parameters():
            if parameter.requires_grad and id(parameter) not in own:
                yield f"pretraining.{name}", parameter

    def before_update(self, moment: Moment) -> None:
        """Between the gradients and the step of the optimizers."""

    def after_update(self, moment: Moment, processes: Processes) -> None:
        """After the step of the optimizers: a teacher follows."""

    @torch.no_grad()
    def health(self, embeddings: Tensor) -> dict[str, float]:
        """More that tells how it goes, from the encoder's embeddings (M, D) of held-out images."""
        return {}
