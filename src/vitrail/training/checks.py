"""Whether what was asked for goes together, before any time is spent on it."""

from __future__ import annotations

from vitrail.errors import VitrailError
from vitrail.tasks.task import Task
from vitrail.training.settings import Recipe, Settings


def check_sharing(train: Recipe, world: int, shard: bool) -> None:
    """Whether a step can be shared among the processes."""
    if shard and train.optimizer == "muon":
        raise VitrailError("Muon needs whole matrices: with --shard set train.optimizer to adamw")
    if shard and world == 1:
        raise VitrailError("--shard cuts a model up among several processes: start it under torchrun")
    if world > 1 and train.batch_size % (2 * world):
        raise VitrailError(
            f"the batch of {train.batch_size} images cannot be shared among {world} processes: "
            f"it must be a multiple of {2 * world}, so set --batch-size"
        )


def check_places(settings: Settings, task: Task) -> None:
    """Whether the settings go with answers about places, or with answers about whole pictures."""
    train, model = settings.train, settings.model
    if model.resize == "window" and task.name != "segment":
        raise VitrailError(f"model.resize = 'window' is for the task segment; {task.name} takes pad or squash")
    if not task.dense:
        if model.head not in ("auto", "linear"):
            raise VitrailError(f"model.head = {model.head!r} is for segment and detect; the task is {task.name}")
        return
    if max(train.mixup, train.cutmix) > 0 or 0 < train.keep_tokens < 1:
        raise VitrailError(
            f"the task {task.name} needs every patch of its own picture: set train.mixup and train.cutmix to 0, and "
            "train.keep_tokens to 1"
        )
    if model.resize == "crop":
        raise VitrailError(f"model.resize = 'crop' hides the edges, and {task.name} answers about all: use pad")
