"""The teacher of a run: found and matched with the labels before any time is spent, then asked at every step."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from vitrail.model.precision import autocast
from vitrail.tasks.task import Task
from vitrail.text import counted
from vitrail.training.auxiliary.distillation import Distillation, distillation_of, match_labels
from vitrail.training.choices.distillation_choice import check_distillation
from vitrail.training.run_context import Run
from vitrail.training.stages.decode_images import TrainingImages
from vitrail.training.teacher import Teacher, load_teacher

ASKED = 64  # validation images


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
    distillation = distillation_of(teacher, images.task, images.preprocessing, train, unlabelled)
    if not run.request.resume:
        run.progress.say(f"  the teacher itself, shown what the student is shown: {own_score(images, distillation)}")
    return replace(images, distillation=distillation)


def own_score(images: TrainingImages, distillation: Distillation) -> str:
    """How good the teacher's answers about some validation images are. Where the student's images are too small for
    it, it knows less than it could."""
    task, held_out, chosen = images.task, images.held_out["val"], images.sample("val", ASKED)
    device = next(distillation.teacher.network.parameters()).device
    pixels = [picture.pixels for picture in held_out.take(chosen)]
    with autocast(device, images.settings.train.precision or "auto"):
        answers = distillation.answers(held_out.processor.transform(pixels, device))
    targets = images.targets["val"].take(np.array(chosen))
    score = task.evaluate(answers.cpu(), targets, bootstrap=0)["metrics"][task.main_metric]
    return f"{task.main_metric} {task.show(task.main_metric, score)} on {counted(len(chosen), 'validation image')}"
