"""What `auto` chooses: model, patch, size and recipe, from the images, their number, the time and the machine.

From scratch on few images is where plain ViTs fail. What helped, and is the default here: a conv stem, patches small
enough for about 64 of them, heads of at least 32 dims, Muon for the blocks' matrices, half of the tokens dropped for
most of the run, and a schedule that ends within the budget. benchmarks/results/train.md has the measurements.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from vitrail.model.config import ViTConfig
from vitrail.model.presets import preset
from vitrail.training.settings import Model, Settings

SMALL = 64  # pixels: pictures up to here are used at their own size
PHOTO = 128  # pixels a side at most, for larger ones: 8 x 8 patches of 16
SHORT = 10.0  # minutes: a run that has too few steps in large batches
MIDDLING = 30.0  # minutes on a CPU, in which batches may be larger, but not largest
HOURS = 90.0  # minutes from which a larger model is worth its time
MANY = 20_000  # images from which it has enough to learn from
SIDES = ("left", "right")
DENSE_TASKS = ("segment", "detect")
DENSE_LONGEST = 512  # pixels of the longer side: small things must stay visible


@dataclass(frozen=True, kw_only=True)
class Facts:
    """What the choice looks at."""

    images: int  # for training
    height: int  # median
    width: int
    grey: bool
    channels: int  # of the files, where they have more than colour
    labels: Sequence[str]
    task: str
    cores: int
    device: str
    minutes: float  # 0: not given
    objects: int = 0  # in the picture that has most of them; 0: there are none to detect
    alike: bool = False  # the pictures of a class are all taken from one side, at one place


def choose_model(settings: Settings, facts: Facts) -> tuple[Settings, list[str]]:
    """The settings with size, patch, width, depth, heads and batch filled in, and why, in a line."""
    asked = settings.model
    channels = asked.channels or (1 if facts.grey else max(3, facts.channels))
    values: dict[str, Any] = {"model.channels": channels}
    if facts.objects:
        values["model.candidates"] = asked.candidates or candidates_for(facts.objects)
    if asked.model != "auto":
        config = preset(asked.model)
        size = asked.image_size or config.image_size[0]
        values |= _shape(settings, config.patch_size[0], config.width, config.depth, config.heads, (size, size))
        values |= {"model.stem": _or(asked.stem, config.stem), "model.pool": _or(asked.pool, config.pool)}
        values |= {"model.stem_blocks": max(asked.stem_blocks, 0), "model.stem_maps": _or(asked.stem_maps, "fine")}
        why = f"model: {asked.model} as asked"
    else:
        if facts.task in DENSE_TASKS:
            sizes, patch = dense_size(settings, facts)
        else:
            size = asked.image_size or size_for(min(facts.height, facts.width))
            sizes, patch = (size, asked.image_width or size), patch_for(size)
        size = max(sizes)
        small = _small(size, facts)
        width, depth = width_and_depth(facts, small)
        values |= _shape(settings, patch, width, depth, width // 32, sizes)
        stem = _or(asked.stem, "conv")
        usual_blocks = 0 if stem != "conv" else 3 if small else 2
        blocks = asked.stem_blocks if asked.stem_blocks >= 0 else usual_blocks
        maps = "wide" if stem == "conv" and size > SMALL and facts.task not in DENSE_TASKS else "fine"
        values |= {"model.stem": stem, "model.stem_blocks": blocks, "model.pool": _or(asked.pool, "mean")}
        values |= {"model.stem_maps": _or(asked.stem_maps, maps)}
        why = ""
    done = settings.with_values(values | {"train.batch_size": settings.train.batch_size or _batch(facts, size)})
    model = done.model
    if not why:
        why = (
            f"model: width {model.width}, depth {model.depth}, {model.heads} heads, {model.stem} stem, "
            f"{model.patch_size} px patches at {_size(model)} px, for {facts.images:,} training images of about "
            f"{facts.width} x {facts.height} px in {len(facts.labels)} "
            f"{'classes' if facts.task != 'regress' else 'numbers'} on {facts.cores} {facts.device} "
            f"core{'s' * (facts.cores != 1)}{f', {facts.minutes:g} minutes' if facts.minutes else ''}"
        )
    return done, [why]


def choose_view(settings: Settings, facts: Facts) -> Settings:
    """How much of a picture the trained model is shown."""
    model = settings.model
    size = max(model.image_size, model.image_width)
    enlarged = model.model == "auto" and _small(size, facts) and settings.augment.crop < 1 and not facts.alike
    usual = middle_of(size) if enlarged else 1.0
    return settings.with_values({"model.crop_fraction": model.crop_fraction or usual})


def choose_recipe(settings: Settings, facts: Facts, epochs: float) -> tuple[Settings, list[str]]:
    """Augmentation and regularisation by how often an image is seen again: the more often, the more it must differ."""
    tuned = bool(settings.model.start)
    many, several = epochs >= 150, epochs >= 15
    named = facts.task == "regress" or turns_meaning(facts.labels)
    flips = "none" if named or facts.alike else "horizontal"
    dense = facts.task in DENSE_TASKS
    train, augment = settings.train, settings.augment
    mixing = many and facts.task != "regress" and not tuned and not dense
    keeps_geometry = dense or facts.task == "regress"  # what is to be told may be a place, a size or a count
    usual_policy = ("colour" if keeps_geometry else "trivial") if several else "none"
    usual_crop = 0.35 if many else 0.5 if several else 0.9 if facts.alike else 0.75
    if facts.task == "regress":
        usual_crop = 1.0
    values: dict[str, Any] = {
        "augment.crop": augment.crop or usual_crop,
        "augment.flip": flips if augment.flip == "auto" else augment.flip,
        "augment.policy": usual_policy if augment.policy == "auto" else augment.policy,
        "augment.erase": augment.erase if augment.erase >= 0 else (0.25 if many and not dense else 0.0),
        "train.mixup": train.mixup if train.mixup >= 0 else (0.2 if mixing else 0.0),
        "train.cutmix": train.cutmix if train.cutmix >= 0 else (1.0 if mixing else 0.0),
        "train.drop_path": train.drop_path if train.drop_path >= 0 else (0.1 if many and not tuned else 0.0),
    }
    done = settings.with_values(values)
    extras = [] if done.augment.crop == 1 else [f"crops from {done.augment.crop:.0%}"]
    seen = augment.flip == "auto" and facts.alike and not named
    extras += [f"flips {done.augment.flip}{' (those of a class are taken from one side)' if seen else ''}"]
    extras += [] if done.augment.policy == "none" else [f"{done.augment.policy} changes"]
    extras += [name for name, on in (("mixup", done.train.mixup), ("cutmix", done.train.cutmix)) if on]
    rule = "Muon" if done.train.optimizer == "muon" else "AdamW"
    tokens = f", {done.train.keep_tokens:.0%} of the tokens until {done.train.keep_until:.0%}"
    why = f"recipe: {rule}{tokens if done.train.keep_tokens < 1 else ''}, {', '.join(extras)}: each image is seen "
    return done, [f"{why}{epochs:.3g} times"]


def choose_optimizer(settings: Settings, sharded: bool, every_patch: bool = False) -> Settings:
    """What the pace depends on, so before it is measured. `every_patch`: none can be left out."""
    tuned, train = bool(settings.model.start), settings.train
    optimizer = train.optimizer
    if optimizer == "auto":
        optimizer = "adamw" if tuned or sharded else "muon"
    usual = usual_rate(settings.model.train_only, tuned, optimizer, train.batch_size)
    keep = train.keep_tokens or (1.0 if tuned or every_patch else kept_tokens(settings.model))
    return settings.with_values(
        {"train.optimizer": optimizer, "train.lr": train.lr or usual, "train.keep_tokens": keep}
    )


def kept_tokens(model: Model) -> float:
    """The part of the patches that early training sees: about 48 of them, a quarter at least and half at most.

    Ti/16 has 196. On flowers for 10 minutes, each run on one core: 62.5 % with a quarter of them, 56.7 % with half. Of
    64, three eighths did not more than half (CIFAR-10 after 7 minutes, 192 x 6, patches of 4: 51.0 and 51.6 %).
    Behind a conv stem, which sees all of the picture anyway, fewer than half would save little.
    """
    if model.stem == "conv":
        return 0.5
    patches = (model.image_size // model.patch_size) * ((model.image_width or model.image_size) // model.patch_size)
    return min(0.5, max(0.25, 48 / patches))


def usual_rate(train_only: str, tuned: bool, optimizer: str, batch: int) -> float:
    """AdamW's peak learning rate that suits most cases; it grows with the root of the batch."""
    scale = (min(batch, 1024) / 256) ** 0.5
    if train_only == "head":
        return 1e-2 * scale
    if train_only == "lora":
        return 1e-3 * scale
    if tuned:
        return 2e-4 * scale
    return (4e-3 if optimizer == "muon" else 1e-3) * scale


def config_of(settings: Settings, head: Mapping[str, Any]) -> ViTConfig:
    """The network that complete settings describe, for a run from scratch."""
    model, train = settings.model, settings.train
    base = preset(model.model) if model.model != "auto" else ViTConfig(cls_token=model.pool == "cls", pool=model.pool)
    if model.pool != base.pool:
        base = base.replace(pool=model.pool, cls_token=model.pool == "cls")
    return base.replace(
        image_size=(model.image_size, model.image_width or model.image_size),
        patch_size=model.patch_size,
        channels=model.channels,
        width=model.width,
        depth=model.depth,
        heads=model.heads,
        stem=model.stem,
        stem_blocks=model.stem_blocks,
        stem_maps=model.stem_maps,
        **head,
        dropout=train.dropout,
        drop_path=max(train.drop_path, 0.0),
    )


def width_and_depth(facts: Facts, small: bool = False) -> tuple[int, int]:
    """What can be trained well on so many images in that time: on a CPU 128 x 4 unless there are hours for it.

    Of small pictures, half of the blocks' time does more in the stem: CIFAR-10 after 6 minutes on one core, one run
    each: 69.7 % with 2 blocks and 3 convolutions a stage, 66.3 % with 4 and 2.
    """
    if facts.device == "cpu":
        return (192, 6) if facts.minutes >= HOURS and facts.images >= MANY else (128, 2 if small else 4)
    return (384, 12) if facts.images >= MANY and not 0 < facts.minutes < HOURS else (192, 6)


def size_for(side: int) -> int:
    """Small pictures at about their own size, in steps that give whole patches."""
    return max(8, side - side % 4) if side <= SMALL else min(PHOTO, side - side % 16)


def middle_of(size: int) -> float:
    """The part of a small picture's side that a model is shown once it is trained: all but a pixel in 32 on each side.

    Training crops enlarge pictures a little, which also smooths pixels that are not shrunk: whole pictures would look
    smaller and sharper than any that it learnt from. A model of CIFAR-10 had 86.3 % on them, 87.4 % on their middles.
    Photos are shrunk anyway, and a model of flowers had 76.1 % on the whole and 76.3 % on the middle.
    """
    return size / (size + 2 * round(size / 32))


def dense_size(settings: Settings, facts: Facts) -> tuple[tuple[int, int], int]:
    """Height, width and patch for answers about places: the usual aspect, and as large as the time of a step allows."""
    asked = settings.model
    longest = max(facts.height, facts.width)
    goal = min(longest, DENSE_LONGEST)
    patch = asked.patch_size or (16 if goal >= 256 else 8 if goal >= 64 else 4)
    if asked.image_size:
        return (asked.image_size, asked.image_width or asked.image_size), patch
    height, width = (max(patch, round(side * goal / longest / patch) * patch) for side in (facts.height, facts.width))
    return (height, width), patch


def candidates_for(objects: int) -> int:
    """Twice as many as any picture has objects, and some to spare; each of them costs time in every step."""
    return min(300, 10 * math.ceil((2 * objects + 10) / 10))


def patch_for(size: int) -> int:
    """About 8 x 8 patches: the largest divisor of the size that leaves at least 7 a side."""
    return max(patch for patch in range(1, size + 1) if size % patch == 0 and (size // patch >= 7 or patch == 1))


def turns_meaning(labels: Sequence[str]) -> bool:
    """Whether a mirrored picture may mean something else: digits, letters, left and right."""
    words = [word for label in labels for word in re.split(r"[\W_]+", label.casefold()) if word]
    signs = all(len(label) == 1 or label.isdigit() for label in labels)
    return signs or any(word in SIDES for word in words)


def _small(size: int, facts: Facts) -> bool:
    """Small pictures with classes."""
    return size <= SMALL and facts.task not in (*DENSE_TASKS, "regress")


def _size(model: Model) -> str:
    square = model.image_width in (0, model.image_size)
    return str(model.image_size) if square else f"{model.image_width} x {model.image_size}"


def _shape(settings: Settings, patch: int, width: int, depth: int, heads: int, size: tuple[int, int]) -> dict[str, Any]:
    asked = settings.model
    width = asked.width or width
    return {
        "model.image_size": size[0],
        "model.image_width": 0 if size[0] == size[1] else size[1],
        "model.patch_size": asked.patch_size or patch,
        "model.width": width,
        "model.depth": asked.depth or depth,
        "model.heads": asked.heads or (heads if width % heads == 0 else max(1, width // 32)),
    }


def _batch(facts: Facts, size: int) -> int:
    """Smaller for few images and for a short run, which must have enough steps; for photos a step must fit into
    memory. To learn about pixels, a few photos are many examples. Fashion-MNIST after 5.5 minutes on one core, one run
    each: 90.4 % in batches of 128, 89.5 % of 256."""
    largest = 256 if size <= PHOTO else 8 if facts.task == "segment" else 64
    if 0 < facts.minutes < SHORT:
        largest = min(largest, {"segment": 16, "detect": 16, "regress": 32}.get(facts.task, 64))
    elif 0 < facts.minutes < MIDDLING and facts.device == "cpu":
        largest = min(largest, 128)
    while largest > 16 and facts.images < (32 if largest > 64 else 16) * largest:
        largest //= 2
    return min(largest, max(2, facts.images - facts.images % 2))


def _or(asked: str, usual: str) -> str:
    return usual if asked == "auto" else asked
