"""What a run from scratch on few photos would do better to start from."""

from __future__ import annotations

from vitrail.tasks.task import Task
from vitrail.training.choices.model_choice import SMALL
from vitrail.training.settings import Settings
from vitrail.weights.published import PublishedModel, published_models

MANY_PHOTOS = 50_000  # from here on, training from scratch has enough to learn from


def better_start(settings: Settings, task: Task, images: int, device: str) -> PublishedModel | None:
    """The published model to fine-tune instead, for so many training images; None where starting afresh was right.

    Of pictures as small as CIFAR's a published model sees little, and its own size would take it long. DINOv2's patch
    features suit answers about places; else the smallest one, unless there is a GPU.
    """
    model = settings.model
    pretrained = model.start is not None or model.cnn is not None
    if pretrained or images >= MANY_PHOTOS or (model.image_size or 0) <= SMALL:
        return None
    return published_models()["dinov2-s" if task.dense or device != "cpu" else "vit-ti"]


def better_start_words(model: PublishedModel, images: int) -> str:
    """The line that a run ends with."""
    return (
        f"{images:,} photos are few to start from scratch: --from {model.name} would fine-tune a model that was "
        f"pre-trained on {model.pretraining} ({model.licence}); 'vitrail models' lists others"
    )
