"""What is chosen for the model where it is not set: size, patch, width, depth, stem and batch.

From scratch on few images is where plain ViTs fail. What helped, and is the default here: a conv stem, patches small
enough for about 64 of them, heads of at least 32 dims, Muon for the blocks' matrices, half of the tokens dropped for
most of the run, and a schedule that ends within the budget. benchmarks/results/train.md has the measurements.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

from vitrail.errors import VitrailError
from vitrail.model.config import TIMM_CNN, ViTConfig
from vitrail.model.encoder_config import EncoderConfig
from vitrail.model.presets import preset
from vitrail.model.timm_cnn import feature_map, feature_maps
from vitrail.tasks.registry import task_data
from vitrail.text import counted
from vitrail.training.choices.facts import Facts
from vitrail.training.settings import Model, Settings
from vitrail.weights.pretrained_cnn import architecture_of

SMALL = 64  # pixels: pictures up to here are used at their own size
PHOTO = 128  # pixels a side at most, for larger ones: 8 x 8 patches of 16
SHORT = 10.0  # minutes: a run that has too few steps in large batches
MIDDLING = 30.0  # minutes on a CPU, in which batches may be larger, but not largest
HOURS = 90.0  # minutes from which a larger model is worth its time
MANY = 20_000  # images from which it has enough to learn from
OF_A_VIT = (  # settings of no other network
    *("width", "depth", "heads", "stem", "stem_blocks", "stem_maps", "pool"),
    *("cnn", "attention_window", "global_blocks"),
)
DENSE_LONGEST = 512  # pixels of the longer side: small things must stay visible


class Choice(NamedTuple):
    """Settings with more of them set, and why, in lines for people."""

    settings: Settings
    reasons: tuple[str, ...]


def choose_model(settings: Settings, facts: Facts) -> Choice:
    """Size, patch, width, depth, heads, stem and batch of a model that starts from scratch."""
    model = settings.model
    channels = 1 if facts.grey else max(3, facts.channels)
    values: dict[str, Any] = {"model.channels": channels}
    if facts.objects:
        values["model.candidates"] = candidates_for(facts.objects)
    values |= _preset_values(model) if model.model is not None else _fitting_values(model, facts)
    if model.cnn is not None:
        values |= _cnn_values(model, values)
    chosen = settings.where_unset(values)
    size = max(chosen.model.image_size or 0, chosen.model.image_width or 0)
    chosen = chosen.where_unset({"train.batch_size": batch_for(facts, size)})
    reason = f"model: {model.model} as asked" if model.model is not None else _reason(chosen.model, facts)
    return Choice(chosen, (reason,))


def _preset_values(model: Model) -> dict[str, Any]:
    """What a preset says."""
    assert model.model is not None
    config = preset(model.model)
    values = {"model.image_size": config.image_size[0], "model.patch_size": config.patch_size[0]}
    if not isinstance(config, ViTConfig):
        for name in OF_A_VIT:
            if getattr(model, name) is not None:
                raise VitrailError(f"model.{name} is for plain ViTs, not for {model.model}: leave it out")
        return values
    return values | {
        "model.width": config.width,
        "model.depth": config.depth,
        "model.heads": heads_for(model.width or config.width, config.heads),
        "model.stem": config.stem,
        "model.stem_blocks": 0,
        "model.stem_maps": "fine",
        "model.pool": config.pool,
    }


def _fitting_values(model: Model, facts: Facts) -> dict[str, Any]:
    """What suits the images, their number, the time and the machine."""
    if keeps_aspect(facts):
        (height, width), patch = size_at_aspect(model, facts)
    else:
        height = model.image_size or size_for(min(facts.height, facts.width))
        width, patch = model.image_width or height, patch_for(height)
    size = max(height, width)
    small = is_small(size, facts)
    dims, depth = width_and_depth(facts, small)
    stem = model.stem or "conv"
    return {
        "model.image_size": height,
        "model.image_width": None if width == height else width,
        "model.patch_size": patch,
        "model.width": dims,
        "model.depth": depth,
        "model.heads": heads_for(model.width or dims, dims // 32),
        "model.stem": stem,
        "model.stem_blocks": 0 if stem != "conv" else 3 if small else 2,
        "model.stem_maps": "wide" if stem == "conv" and size > SMALL and not facts.task_class.dense else "fine",
        "model.pool": "mean",
    }


def _cnn_values(model: Model, values: Mapping[str, Any]) -> dict[str, Any]:
    """What the CNN changes: its stem, and patches that are the cells of one of its maps, at least 7 of them a side."""
    assert model.cnn is not None
    strides = feature_maps(architecture_of(model.cnn))
    height, width = model.image_size or values["model.image_size"], model.image_width or values.get("model.image_width")
    sides = (height, width or height)
    patch = model.patch_size or max((s for s in strides if min(sides) // s >= 7), default=min(strides))
    return {
        "model.stem": "features",
        "model.stem_blocks": 0,
        "model.stem_maps": "fine",
        "model.patch_size": patch,
        "model.image_size": max(1, round(sides[0] / patch)) * patch,
        "model.image_width": None if width is None else max(1, round(width / patch)) * patch,
    }


def _reason(model: Model, facts: Facts) -> str:
    square = model.image_width in (None, model.image_size)
    size = str(model.image_size) if square else f"{model.image_width} x {model.image_size}"
    labels = counted(len(facts.labels), *task_data(facts.task).label_noun)
    stem = model.stem if model.cnn is None else f"{model.cnn} as the"
    return (
        f"model: width {model.width}, depth {model.depth}, {counted(model.heads or 0, 'head')}, {stem} stem, "
        f"{model.patch_size} px patches at {size} px, for {facts.images:,} training images of about "
        f"{facts.width} x {facts.height} px in {labels} on {facts.cores} "
        f"{facts.device} core{'s' * (facts.cores != 1)}{f', {facts.minutes:g} minutes' if facts.minutes else ''}"
    )


def choose_view(settings: Settings, facts: Facts) -> Settings:
    """How much of a picture the trained model is shown."""
    model = settings.model
    size = max(model.image_size or 0, model.image_width or 0)
    cropped = settings.augment.crop is None or settings.augment.crop < 1
    enlarged = model.model is None and is_small(size, facts) and cropped and not facts.alike
    return settings.where_unset({"model.crop_fraction": middle_of(size) if enlarged else 1.0})


def config_of(settings: Settings, head: Mapping[str, Any]) -> EncoderConfig:
    """The network that chosen settings describe, for a run from scratch. `head`: the fields that describe the head."""
    model, train = settings.model, settings.train
    assert model.image_size is not None
    own: dict[str, Any] = {
        "image_size": (model.image_size, model.image_width or model.image_size),
        "patch_size": model.patch_size,
        "channels": model.channels,
        "dropout": train.dropout,
        "drop_path": train.drop_path or 0.0,
        **head,
    }
    base = ViTConfig(cls_token=False, pool="mean") if model.model is None else preset(model.model)
    if not isinstance(base, ViTConfig):
        return base.replace(**own)
    distillation = base.distillation or adds_distillation_token(settings)
    return base.replace(**own, **_vit_fields(model, base), distillation=distillation)


def adds_distillation_token(settings: Settings) -> bool:
    """Whether a ViT that starts from scratch gets DeiT's second [CLS], because it learns the class of a teacher."""
    train = settings.train
    return train.teacher is not None and train.distillation == "hard" and settings.model.pool == "cls"


def _vit_fields(model: Model, base: ViTConfig) -> dict[str, Any]:
    """What a plain ViT's config takes from the settings, and no other's."""
    assert model.pool is not None
    pool = {} if model.pool == base.pool else {"pool": model.pool, "cls_token": model.pool == "cls"}
    return pool | {
        "width": model.width,
        "depth": model.depth,
        "heads": model.heads,
        **_stem_fields(model),
        **window_fields(model),
    }


def window_fields(model: Model) -> dict[str, Any]:
    """The fields of ViTConfig that say which windows attention stays in, where they are set."""
    fields = {"attention_window": model.attention_window, "global_blocks": model.global_blocks}
    return {name: value for name, value in fields.items() if value is not None}


def _stem_fields(model: Model) -> dict[str, Any]:
    """The fields of ViTConfig that say what the stem is."""
    if model.cnn is None:
        return {"stem": model.stem, "stem_blocks": model.stem_blocks, "stem_maps": model.stem_maps}
    assert model.patch_size is not None
    architecture = architecture_of(model.cnn)
    channels = feature_map(architecture, model.patch_size).channels
    return {"stem": "features", "cnn": f"{TIMM_CNN}{architecture}", "feature_channels": channels}


def width_and_depth(facts: Facts, small: bool = False) -> tuple[int, int]:
    """What can be trained well on so many images in that time: on a CPU 128 x 4 unless there are hours for it.

    Of small pictures, half of the blocks' time does more in the stem: CIFAR-10 after 6 minutes on one core, one run
    each: 69.7 % with 2 blocks and 3 convolutions a stage, 66.3 % with 4 and 2.
    """
    minutes = facts.minutes or 0.0
    if facts.device == "cpu":
        return (192, 6) if minutes >= HOURS and facts.images >= MANY else (128, 2 if small else 4)
    return (384, 12) if facts.images >= MANY and not 0 < minutes < HOURS else (192, 6)


def size_for(side: int) -> int:
    """Small pictures at about their own size, in steps that give whole patches."""
    return max(8, side - side % 4) if side <= SMALL else min(PHOTO, side - side % 16)


def is_small(size: int, facts: Facts) -> bool:
    """Small pictures with classes."""
    return size <= SMALL and facts.task_class.classifies_images


def middle_of(size: int) -> float:
    """The part of a small picture's side that a model is shown once it is trained: all but a pixel in 32 on each side.

    Training crops enlarge pictures a little, which also smooths pixels that are not shrunk: whole pictures would look
    smaller and sharper than any that it learnt from. A model of CIFAR-10 had 86.3 % on them, 87.4 % on their middles.
    Photos are shrunk anyway, and a model of flowers had 76.1 % on the whole and 76.3 % on the middle.
    """
    return size / (size + 2 * round(size / 32))


def keeps_aspect(facts: Facts) -> bool:
    """Whether images are seen at their usual aspect, as large as the time suffices for: where answers are about places,
    and where numbers are told from photos, which may be counts of small things.

    Red cells counted in 205 photos of 640 x 480 px, 2 minutes on one busy core, one run each: R2 0.28 on 87 validation
    images and 0.06 on 72 test images at 128 px, 0.33 and 0.12 at 256 x 192 px.
    """
    numbers = facts.task_class.every_patch and max(facts.height, facts.width) > PHOTO
    return facts.task_class.dense or numbers


def size_at_aspect(model: Model, facts: Facts) -> tuple[tuple[int, int], int]:
    """Height, width and patch at the usual aspect, as large as is useful. Where numbers are told and nobody says how
    long that may take, twice as large as other photos: each step larger takes several times as long."""
    dense = facts.task_class.dense
    longest = max(facts.height, facts.width)
    goal = min(longest, DENSE_LONGEST if dense or facts.minutes else 2 * PHOTO)
    patch = model.patch_size or (16 if goal >= 256 or not dense else 8 if goal >= 64 else 4)
    if model.image_size:
        return (model.image_size, model.image_width or model.image_size), patch
    height, width = (max(patch, round(side * goal / longest / patch) * patch) for side in (facts.height, facts.width))
    return (height, width), patch


def candidates_for(objects: int) -> int:
    """Twice as many as any picture has objects, and some to spare; each of them costs time in every step."""
    return min(300, 10 * math.ceil((2 * objects + 10) / 10))


def patch_for(size: int) -> int:
    """About 8 x 8 patches: the largest divisor of the size that leaves at least 7 a side."""
    return max(patch for patch in range(1, size + 1) if size % patch == 0 and (size // patch >= 7 or patch == 1))


def heads_for(width: int, usual: int) -> int:
    """The usual number of heads where it divides the width, else one for 32 dims."""
    return usual if width % usual == 0 else max(1, width // 32)


def batch_for(facts: Facts, size: int) -> int:
    """Smaller for few images and for a short run, which must have enough steps; for photos a step must fit into
    memory. To learn about pixels, a few photos are many examples. Fashion-MNIST after 5.5 minutes on one core, one run
    each: 90.4 % in batches of 128, 89.5 % of 256."""
    task, minutes = facts.task_class, facts.minutes or 0.0
    largest = 256 if size <= PHOTO else task.photo_batch
    if 0 < minutes < SHORT:
        largest = min(largest, task.short_run_batch)
    elif 0 < minutes < MIDDLING and facts.device == "cpu":
        largest = min(largest, 128)
    while largest > 16 and facts.images < (32 if largest > 64 else 16) * largest:
        largest //= 2
    return min(largest, max(2, facts.images - facts.images % 2))
