"""Distillation: a student learns its teacher's answers beside the labels.

With DeiT's two heads, [CLS] learns the labels and the distillation token learns the teacher; the model's answer is the
mean of both. A network with one head learns both by it.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from vitrail.errors import VitrailError
from vitrail.inference.label_matching import label_places
from vitrail.tasks.registry import EMBED
from vitrail.tasks.task import Task
from vitrail.training.settings import Recipe
from vitrail.training.teacher import Teacher, in_channels
from vitrail.weights.preprocessing import Preprocessing

FEATURES = "to learn the features of any model without labels there is `vitrail pretrain --teacher`"


@dataclass(frozen=True, kw_only=True)
class Distillation:
    """A teacher, and how much and what is learnt of it."""

    teacher: Teacher
    places: Tensor  # (K,): where the data's labels stand among the teacher's outputs
    student: Preprocessing
    kind: str  # hard, soft
    temperature: float
    weight: float  # of the teacher in the loss; the labels have the rest
    unlabelled: int = 0  # images without labels that a step has beside the others, over all processes

    def answers(self, images: Tensor) -> Tensor:
        """(B, C, H, W), as the student is given them -> (B, K): the teacher's outputs, in the order of the data's
        labels. The caller's autocast decides the precision."""
        return self.teacher.outputs(images, self.student)[:, self.places.to(images.device)]

    def loss_share(self, task: Task, outputs: Tensor, answers: Tensor, counts: Tensor) -> Tensor:
        """What the answers (B, K) about a part of a step add to the step's loss, before `weight`. outputs: (B, K), of
        the head that learns them; counts: see `Task.loss_share`."""
        distance = task.distillation_loss(outputs, answers, self.kind, self.temperature)
        return distance * (len(answers) / (counts[0] + self.unlabelled))

    def record(self) -> dict[str, str | float]:
        """What the model file and the report say of it. The teacher itself is no part of the file."""
        return {
            "teacher": self.teacher.name,
            "fingerprint": self.teacher.fingerprint,
            "distillation": self.kind,
            "temperature": self.temperature,
            "weight": self.weight,
        }


def match_labels(teacher: Teacher, task: Task) -> Tensor:
    """(K,): where the task's labels stand among the teacher's outputs, by their names. A teacher that cannot answer
    about them is refused."""
    if teacher.task == EMBED:
        raise VitrailError(f"the teacher {teacher.name} gives features and no answers: {FEATURES}")
    if teacher.task != task.name:
        raise VitrailError(f"the teacher {teacher.name} learnt the task {teacher.task}, and the data's is {task.name}")
    if teacher.labels is None:
        raise VitrailError(
            f"the teacher {teacher.name} does not name its outputs, so they cannot be matched with the data's: "
            "save it with its names, as in vitrail.load(model, labels=[...]).save(file)"
        )
    try:
        return torch.tensor(label_places(task.labels, teacher.labels))
    except VitrailError as error:
        reason = str(error).removeprefix("the model has ").rpartition(": ")[0]
        raise VitrailError(
            f"the teacher {teacher.name} has {reason}: fine-tune it on this data first; {FEATURES}"
        ) from None


def distillation_of(
    teacher: Teacher, task: Task, student: Preprocessing, recipe: Recipe, unlabelled: int = 0
) -> Distillation:
    """As complete settings have it. A teacher of other channels is refused before anything is learnt."""
    in_channels(torch.zeros(1, student.channels, 1, 1), teacher.preprocessing.channels, teacher.name)
    assert recipe.distillation is not None and recipe.distillation_weight is not None
    return Distillation(
        teacher=teacher,
        places=match_labels(teacher, task),
        student=student,
        kind=recipe.distillation,
        temperature=recipe.distillation_temperature or 1.0,
        weight=recipe.distillation_weight,
        unlabelled=unlabelled,
    )
