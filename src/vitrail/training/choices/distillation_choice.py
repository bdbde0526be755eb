"""What is learnt of a teacher, where it is not set: its class or its probabilities, and how much."""

from __future__ import annotations

from pathlib import Path

from vitrail.errors import VitrailError
from vitrail.model.config import ViTConfig
from vitrail.model.encoder_config import EncoderConfig
from vitrail.model.presets import preset
from vitrail.tasks.task import Task
from vitrail.text import shown
from vitrail.training.choices.model_choice import Choice, adds_distillation_token
from vitrail.training.settings import Settings

TEMPERATURE = 2.0
MOSTLY, HALF = 0.9, 0.5  # of the loss: soft answers hold what a label says and more (Hinton); else DeiT's half and half
OF_A_TEACHER = ("distillation", "distillation_temperature", "distillation_weight")


def check_distillation(settings: Settings, task: Task) -> None:
    """Whether the settings of a teacher go together, and with the task."""
    train = settings.train
    if train.teacher is None:
        for name in OF_A_TEACHER:
            if getattr(train, name) is not None:
                raise VitrailError(f"train.{name} says what is learnt of a teacher: name one with --teacher")
        return
    if not task.distillations:
        raise VitrailError(
            f"--teacher goes with answers about whole pictures, classes, labels and numbers; the task is {task.name}"
        )
    if train.distillation is not None and train.distillation not in task.distillations:
        kinds = " or ".join(task.distillations)
        raise VitrailError(f"train.distillation is {train.distillation!r}; the task {task.name} learns {kinds} answers")
    if train.distillation == "hard" and train.distillation_temperature is not None:
        raise VitrailError("train.distillation_temperature is of soft answers: leave it out, or set distillation soft")


def check_unlabelled(settings: Settings, config: EncoderConfig, shard: bool) -> None:
    """Whether pictures without labels can join the run."""
    pile = settings.data.unlabelled
    if pile is None:
        return
    if not Path(pile).is_dir():
        raise VitrailError(f"--unlabelled {shown(pile)} is no folder: give one with pictures in it, or in its folders")
    if settings.train.teacher is not None:
        return
    if not config.drops_tokens:
        raise VitrailError("--unlabelled hides patches, and windows of attention need all of theirs: add a --teacher")
    if settings.model.train_only != "all":
        raise VitrailError(
            f"--unlabelled teaches the whole network, and model.train_only is {settings.model.train_only!r}: "
            "set it to all, or add a --teacher"
        )
    if shard:
        raise VitrailError("--unlabelled does not go with --shard: leave one of them out, or add a --teacher")


def choose_distillation(settings: Settings, task: Task, loaded: EncoderConfig | None) -> Choice:
    """With what is learnt of the teacher; as it is, where there is none. `loaded`: of the model that is fine-tuned."""
    train, model = settings.train, settings.model
    if train.teacher is None:
        return Choice(settings, ())
    config = loaded if loaded is not None or model.model is None else preset(model.model)
    has_token = isinstance(config, ViTConfig) and config.distillation
    kind = train.distillation or ("hard" if has_token and "hard" in task.distillations else task.distillations[0])
    values: dict[str, str | float] = {"train.distillation": kind, "train.distillation_weight": HALF}
    if kind == "soft" and task.classifies_images:
        values |= {"train.distillation_weight": MOSTLY, "train.distillation_temperature": TEMPERATURE}
    if kind == "hard" and loaded is None and (config is None or isinstance(config, ViTConfig)):
        values["model.pool"] = "cls"  # the distillation token is a second [CLS]
    chosen = settings.where_unset(values)
    two_heads = has_token or (loaded is None and adds_distillation_token(chosen))
    return Choice(chosen, (_reason(chosen, two_heads),))


def _reason(settings: Settings, two_heads: bool) -> str:
    train = settings.train
    weight = f"with {train.distillation_weight:.0%} of the loss"
    if train.distillation == "hard":
        by = "a distillation token and a head of its own" if two_heads else "the one head, which learns the labels too"
        return f"teacher: {train.teacher}, the class that it gives, learnt by {by}, {weight}"
    at = f" at temperature {train.distillation_temperature:g}" if train.distillation_temperature else ""
    how = ", by the distillation token's head" if two_heads else ""
    return f"teacher: {train.teacher}, its answers{at}{how}, {weight}: they also tell what else a picture is like"
