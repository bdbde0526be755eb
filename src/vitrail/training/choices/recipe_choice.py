"""What is chosen for the recipe where it is not set: optimizer, learning rate, tokens, augmentation, regularisation."""

from __future__ import annotations

import re
from collections.abc import Sequence

from vitrail.training.choices.facts import Facts
from vitrail.training.choices.model_choice import Choice
from vitrail.training.settings import Model, Settings

SIDES = ("left", "right")
OFF_THE_USUAL = 10  # times: a learning rate that far off is warned of


def choose_optimizer(settings: Settings, sharded: bool, every_patch: bool = False) -> Settings:
    """What the time of a step depends on, so before it is measured. `every_patch`: none can be left out."""
    tuned = settings.model.start is not None
    chosen = settings.where_unset({"train.optimizer": "adamw" if tuned or sharded else "muon"})
    all_patches = tuned or every_patch or bool(settings.model.attention_window)  # windows are made of all patches
    keep = 1.0 if all_patches else kept_tokens(settings.model)
    return chosen.where_unset({"train.lr": usual_rate_of(chosen), "train.keep_tokens": keep})


def kept_tokens(model: Model) -> float:
    """The part of the patches that early training sees: about 48 of them, a quarter at least and half at most.

    Ti/16 has 196. On flowers for 10 minutes, each run on one core: 62.5 % with a quarter of them, 56.7 % with half. Of
    64, three eighths did not more than half (CIFAR-10 after 7 minutes, 192 x 6, patches of 4: 51.0 and 51.6 %).
    Behind a conv stem, which sees all of the picture anyway, fewer than half would save little.
    """
    if model.stem == "conv":
        return 0.5
    assert model.image_size is not None and model.patch_size is not None
    patches = (model.image_size // model.patch_size) * ((model.image_width or model.image_size) // model.patch_size)
    return min(0.5, max(0.25, 48 / patches))


def usual_rate(train_only: str, tuned: bool, optimizer: str, batch: int) -> float:
    """AdamW's peak learning rate that suits most cases; it grows with the root of the batch.

    Fine-tuning, DeiT-Ti for 2 minutes on one core in batches of 32, one run each: at 2.1e-4 and 5e-4 flowers had 79.7
    and 83.4 %, 200 cats and dogs 85.9 and 88.4 %.
    """
    scale = (min(batch, 1024) / 256) ** 0.5
    if train_only == "head":
        return 1e-2 * scale
    if train_only == "lora":
        return 1e-3 * scale
    if tuned:
        return 1.4e-3 * scale
    return (4e-3 if optimizer == "muon" else 1e-3) * scale


def usual_rate_of(settings: Settings) -> float:
    """The usual rate of settings in which optimizer and batch are chosen."""
    model, train = settings.model, settings.train
    assert train.optimizer is not None and train.batch_size is not None
    return usual_rate(model.train_only, model.start is not None, train.optimizer, train.batch_size)


def rate_warning(settings: Settings) -> str | None:
    """A sentence about a learning rate that is far off the usual one."""
    rate, usual = settings.train.lr, usual_rate_of(settings)
    if rate is None or usual / OFF_THE_USUAL < rate < usual * OFF_THE_USUAL:
        return None
    return f"the learning rate {rate:g} is more than {OFF_THE_USUAL} times off the usual {usual:.2g}"


def choose_recipe(settings: Settings, facts: Facts, epochs: float) -> Choice:
    """Augmentation and regularisation by how often an image is seen again: the more often, the more it must differ.

    A picture of a number is never changed. Changes of colour, which it had once, cost more than they could give: red
    cells counted in 205 photos, 2 minutes on one core at 128 px, R2 on 87 validation images 0.28 without, 0.20 with.
    """
    task = facts.task_class
    tuned = settings.model.start is not None
    many, several = epochs >= 150, epochs >= 15
    mixing = many and task.classifies_images and not tuned
    one_sided = not task.crops_and_flips or turns_meaning(facts.labels, signs=facts.named and task.classifies_images)
    policy = "colour" if task.dense else "trivial"
    crop = 0.35 if many else 0.5 if several else 0.9 if facts.alike else 0.75
    few_by_heart = (
        tuned and task.classifies_images
    )  # a model that knows photos learns a few by heart within some epochs
    if few_by_heart and not facts.alike:
        crop = 0.2
    chosen = settings.where_unset(
        {
            "augment.crop": crop if task.crops_and_flips else 1.0,
            "augment.flip": "none" if one_sided or facts.alike else "horizontal",
            "augment.policy": policy if several and task.crops_and_flips else "none",
            "augment.erase": 0.25 if many and not task.dense and task.crops_and_flips else 0.0,
            "train.mixup": 0.2 if mixing else 0.0,
            "train.cutmix": 1.0 if mixing else 0.0,
            "train.drop_path": 0.1 if few_by_heart or (many and not tuned) else 0.0,
        }
    )
    told_by_pictures = settings.augment.flip is None and facts.alike and not one_sided
    return Choice(chosen, (_reason(chosen, epochs, told_by_pictures),))


def _reason(chosen: Settings, epochs: float, told_by_pictures: bool) -> str:
    train, augment = chosen.train, chosen.augment
    parts = [] if augment.crop == 1 else [f"crops from {augment.crop:.0%}"]
    parts += [f"flips {augment.flip}{' (those of a class are taken from one side)' if told_by_pictures else ''}"]
    parts += [] if augment.policy == "none" else [f"{augment.policy} changes"]
    parts += [name for name, alpha in (("mixup", train.mixup), ("cutmix", train.cutmix)) if alpha]
    rule = "Muon" if train.optimizer == "muon" else "AdamW"
    tokens = ""
    if train.keep_tokens is not None and train.keep_tokens < 1:
        tokens = f", {train.keep_tokens:.0%} of the tokens until {train.keep_until:.0%}"
    return f"recipe: {rule}{tokens}, {', '.join(parts)}: each image is seen {epochs:.3g} times"


def turns_meaning(labels: Sequence[str], signs: bool = True) -> bool:
    """Whether a mirrored picture may mean something else: digits, letters, left and right.

    signs: whether the labels can be digits and letters at all, which the whole picture shows; an index of a mask that
    nobody named is no digit.
    """
    words = [word for label in labels for word in re.split(r"[\W_]+", label.casefold()) if word]
    are_signs = signs and all(len(label) == 1 or label.isdigit() for label in labels)
    return are_signs or any(word in SIDES for word in words)
