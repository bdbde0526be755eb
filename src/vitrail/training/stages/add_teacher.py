"""The teacher of a run: found and matched with the labels before any time is spent, then asked at every step."""

from __future__ import annotations

from dataclasses import replace

from vitrail.tasks.task import Task
from vitrail.training.auxiliary.distillation import distillation_of, match_labels
from vitrail.training.choices.distillation_choice import check_distillation
from vitrail.training.run_context import Run
from vitrail.training.stages.decode_images import TrainingImages
from vitrail.training.teacher import Teacher, load_teacher


def find_teacher(run: Run, task: Task) -> Teacher | None:
    """The teacher that the settings name, if it can answer about the task's labels; None: they name none."""
    check_distillation(run.settings, task)
    if run.settings.train.teacher is None:
        return None
    teacher = load_teacher(run.settings.train.teacher)
    match_labels(teacher, task)
    return teacher.to(run.processes.device)


def add_teacher(run: Run, images: TrainingImages, teacher: Teacher | None) -> TrainingImages:
    """The images with the teacher beside them; as they are, where there is none."""
    if teacher is None:
        return images
    train, unlabelled = images.settings.train, 0
    if images.pile is not None:
        assert train.batch_size is not None
        unlabelled = images.pile.batch_size(train.batch_size, run.processes.world)
    return replace(images, distillation=distillation_of(teacher, images.task, images.preprocessing, train, unlabelled))
