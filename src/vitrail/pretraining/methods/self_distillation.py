"""Self-distillation: a student learns to say of every crop what a teacher, an average of itself, says of another."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Sequence

import torch
from torch import Tensor, nn

from vitrail.model.noise import current_keys, drawing_by, keys_for
from vitrail.model.vit import ViT
from vitrail.pretraining.methods.dino_loss import WARM_TEMPERATURE, DINOLoss
from vitrail.pretraining.methods.method import GLOBAL_VIEWS, Method, Moment
from vitrail.pretraining.methods.schedules import cosine, first_momentum, linear
from vitrail.pretraining.methods.simdino_loss import SimDINOLoss
from vitrail.training.distributed import Processes

FROZEN_PROTOTYPES = 0.01  # of the steps: the paper's code keeps the last layer still for its first epoch of 100
WARM_UP = 0.1  # of the steps, for the teacher's temperature


class SelfDistillation(Method):
    """Student and teacher, each an encoder with a head, and the loss between them."""

    def __init__(
        self,
        student: ViT,
        head: nn.Module,
        loss: DINOLoss | SimDINOLoss,
        momentum: tuple[float | None, float] = (None, 1.0),
        temperature: float = WARM_TEMPERATURE,
        target: str = "teacher",
    ) -> None:
        """momentum: of the teacher at the start (None: by the length of the run) and at the end. target: "mean", where
        the student's own crops are what they learn to agree with, and the teacher is only kept."""
        super().__init__()
        self.student, self.head, self.loss = student, head, loss
        self.teacher = without_noise(student)
        self.teacher_head = copy.deepcopy(head).requires_grad_(False)
        self.momentum, self.temperature, self.target = momentum, temperature, target
        self.resting_loss = loss.resting_loss if isinstance(loss, DINOLoss) else None

    @property
    def encoder(self) -> ViT:
        """The teacher: an average over many steps is better than any of them."""
        return self.teacher

    def forward(self, views: Sequence[Tensor], keep: Tensor | None, moment: Moment) -> Tensor:
        """All views -> the loss. The teacher sees whole global views, and its batch norms have statistics of them."""
        if isinstance(self.loss, SimDINOLoss):
            teacher = self.teacher_outputs(views) if self.target == "teacher" else None
            return self.loss(self.student_outputs(views, keep), teacher)
        teacher = self.teacher_outputs(views)
        self.loss.observe(teacher)
        return self.loss(self.student_outputs(views, keep), teacher, self.temperature_at(moment))

    @torch.no_grad()
    def teacher_outputs(self, views: Sequence[Tensor]) -> Tensor:
        """(G, B, P) of the global views."""
        return self.teacher_head(self.teacher(torch.cat(list(views[:GLOBAL_VIEWS])))).unflatten(0, (GLOBAL_VIEWS, -1))

    def student_outputs(self, views: Sequence[Tensor], keep: Tensor | None) -> Tensor:
        """(V, B, P) of all views, those patches of the global ones that are kept."""
        with drawing_by(view_keys(range(GLOBAL_VIEWS))):
            features = [self.student(torch.cat(list(views[:GLOBAL_VIEWS])), keep=keep)]
        if len(views) > GLOBAL_VIEWS:
            with drawing_by(view_keys(range(GLOBAL_VIEWS, len(views)))):
                features.append(self.student(torch.cat(list(views[GLOBAL_VIEWS:]))))
        return self.head(torch.cat(features)).unflatten(0, (len(views), -1))

    def temperature_at(self, moment: Moment) -> float:
        """Of the teacher."""
        return linear(moment.step, round(WARM_UP * moment.steps), WARM_TEMPERATURE, self.temperature)

    def momentum_at(self, moment: Moment) -> float:
        """Of the teacher's weights: at an end of 1 it stands still."""
        first, last = self.momentum
        first = first_momentum(moment.steps) if first is None else first
        return cosine(moment.step, moment.steps, first, last)

    def before_update(self, moment: Moment) -> None:
        """The prototypes stand still at first."""
        prototypes = getattr(self.head, "prototypes", None)
        if prototypes is not None and moment.step < FROZEN_PROTOTYPES * moment.steps:
            prototypes.grad = None

    @torch.no_grad()
    def after_update(self, moment: Moment, processes: Processes) -> None:
        """teacher <- m teacher + (1 - m) student, and the centre follows the teacher's outputs."""
        share = 1 - self.momentum_at(moment)
        pairs = ((self.teacher, self.student), (self.teacher_head, self.head))
        for average, own in pairs:
            torch._foreach_lerp_(list(average.parameters()), list(own.parameters()), share)
        if isinstance(self.loss, DINOLoss):
            self.loss.update_centre(processes)

    @torch.no_grad()
    def health(self, embeddings: Tensor) -> dict[str, float]:
        """dino: the entropy of the teacher's answer for an image, and of its mean answer, in shares of ln K."""
        if not isinstance(self.loss, DINOLoss):
            return {}
        device = self.loss.centre.device
        answers = self.loss.targets(self.teacher_head(embeddings.to(device)), self.temperature)
        return {
            "entropy": entropy(answers).mean().item() / self.loss.resting_loss,
            "prototypes": entropy(answers.mean(0)).exp().item(),
        }


def view_keys(numbers: Iterable[int]) -> Tensor | None:
    """Of views one after another, from the present keys of the images; None where there are none."""
    keys = [keys_for(number) for number in numbers]
    return None if current_keys() is None else torch.cat([key for key in keys if key is not None])


def entropy(probabilities: Tensor) -> Tensor:
    """(..., K) -> (...), in nats."""
    return torch.special.entr(probabilities).sum(-1)


def without_noise(student: ViT) -> ViT:
    """A copy for the teacher: the same weights, no dropout and no drop path, nothing learnt by gradients."""
    teacher = ViT(student.config.replace(dropout=0.0, drop_path=0.0), copy.deepcopy(student.feature_cnn))
    teacher.load_state_dict(student.state_dict())
    return teacher.train(student.training).requires_grad_(False)
