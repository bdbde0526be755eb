"""Whether settings go together, and with the task and the processes, before any time is spent on them."""

from __future__ import annotations

from vitrail.errors import VitrailError
from vitrail.model.encoder_config import EncoderConfig
from vitrail.tasks.task import Task
from vitrail.training.settings import Recipe, Settings
from vitrail.weights.published import published_models

# what a fine-tuned model has decided
FROM_START = ("model", "width", "depth", "heads", "patch_size", "stem", "cnn", "pool")


def check_start(settings: Settings) -> None:
    """Whether the settings of the model go with starting from a file, or from scratch."""
    model = settings.model
    if model.model in published_models():
        raise VitrailError(f"model.model is a preset; {model.model} is a published model: start from it with --from")
    if model.cnn is not None and model.stem not in (None, "features"):
        raise VitrailError(f"model.cnn makes the tokens, so leave out model.stem = {model.stem!r}")
    if model.start is None:
        if model.cnn is None and (model.stem == "features" or model.freeze_cnn):
            named = "model.freeze_cnn" if model.freeze_cnn else "model.stem = 'features'"
            raise VitrailError(f"{named} needs a CNN: set model.cnn, such as timm:resnet18.a1_in1k")
        if model.train_only != "all":
            raise VitrailError(f"model.train_only = {model.train_only!r} needs a model to start from: --from")
        return
    for name in FROM_START:
        if getattr(model, name) is not None:
            raise VitrailError(f"model.{name} is that of the model in --from, so leave it out")


def check_balanced(settings: Settings, task: Task) -> None:
    if settings.train.balanced and not task.one_class_each:
        raise VitrailError(f"train.balanced draws every class equally often; the task here is {task.name}")


def check_sharing(train: Recipe, world: int, shard: bool) -> None:
    """Whether a step can be shared among the processes."""
    assert train.batch_size is not None
    if shard and train.optimizer == "muon":
        raise VitrailError("Muon needs whole matrices: with --shard set train.optimizer to adamw")
    if shard and world == 1:
        raise VitrailError("--shard cuts a model up among several processes: start it under torchrun")
    if world > 1 and train.batch_size % (2 * world):
        raise VitrailError(
            f"the batch of {train.batch_size} images cannot be shared among {world} processes: "
            f"it must be a multiple of {2 * world}, so set --batch-size"
        )


def check_network(settings: Settings, config: EncoderConfig) -> None:
    """Whether the recipe goes with the network."""
    if (settings.train.keep_tokens or 1.0) < 1 and not config.drops_tokens:
        raise VitrailError(
            f"train.keep_tokens = {settings.train.keep_tokens:g} leaves patches out, and a window of Swin needs all of "
            "its own: set it to 1"
        )


def check_task(settings: Settings, task: Task) -> None:
    """Whether the settings go with answers about places, or with answers about whole pictures."""
    train, model = settings.train, settings.model
    if model.attention_window and (train.keep_tokens or 1.0) < 1:
        raise VitrailError("model.attention_window needs all patches: set train.keep_tokens to 1")
    if model.resize == "window" and not task.sliding_windows:
        raise VitrailError(f"model.resize = 'window' is for masks; the task {task.name} takes pad or squash")
    if not task.dense:
        if model.head not in (None, "linear"):
            raise VitrailError(f"model.head = {model.head!r} is for masks and boxes; the task is {task.name}")
        return
    if max(train.mixup or 0.0, train.cutmix or 0.0) > 0 or (train.keep_tokens or 1.0) < 1:
        raise VitrailError(
            f"the task {task.name} needs every patch of its own picture: set train.mixup and train.cutmix to 0, and "
            "train.keep_tokens to 1"
        )
    if model.resize == "crop":
        raise VitrailError(f"model.resize = 'crop' hides the edges, and {task.name} answers about all: use pad")
