"""The parts of a run, made from complete settings: the model at its start, its optimizers' rates, what feeds it."""

from __future__ import annotations

from typing import Any

import torch

from vitrail.data.augment import Augmentation
from vitrail.data.feed import Feed
from vitrail.data.order import Order
from vitrail.data.store import Store
from vitrail.data.truths import Truths
from vitrail.errors import VitrailError
from vitrail.model.patches import ConvStem
from vitrail.model.vit import Head, ViT
from vitrail.tasks.dense import Dense
from vitrail.tasks.task import Task
from vitrail.training.choose import config_of
from vitrail.training.lora import add_low_rank
from vitrail.training.parameters import Rates, choose_trained
from vitrail.training.settings import Settings
from vitrail.weights.adapt import adapt
from vitrail.weights.checkpoint import Checkpoint
from vitrail.weights.load import load
from vitrail.weights.preprocessing import Preprocessing


def starting_point(settings: Settings, task: Task) -> Checkpoint:
    """The model that a run starts from: fresh, or loaded and fitted to these labels."""
    model, train = settings.model, settings.train
    torch.manual_seed(train.seed)
    if model.start:
        return _loaded(settings, task)
    network = ViT(config_of(settings, head_fields(settings, task)))
    rule = ("pad" if task.dense else "crop") if model.resize == "auto" else model.resize
    fraction = 1.0 if task.dense else model.crop_fraction or 1.0
    preprocessing = Preprocessing(size=network.config.image_size, resize=rule, crop_fraction=fraction)
    return Checkpoint(network, preprocessing.for_channels(network.config.channels), task.name, list(task.labels))


def head_fields(settings: Settings, task: Task) -> dict[str, Any]:
    """The fields of ViTConfig that say what the head is."""
    fields = {"classes": len(task.labels), "head": "linear", "queries": 0, "head_depth": 0}
    if not isinstance(task, Dense):
        return fields
    asked = settings.model.head
    kinds = {name.partition("_")[2]: name for name in task.heads}
    if asked != "auto" and asked not in kinds:
        raise VitrailError(f"model.head is {asked!r}; the task {task.name} has {', '.join(kinds)}")
    return fields | task.head_fields(task.heads[0] if asked == "auto" else kinds[asked], settings.model.candidates)


def _loaded(settings: Settings, task: Task) -> Checkpoint:
    model, train = settings.model, settings.train
    extra: dict[str, Any] = {"drop_path": max(train.drop_path, 0.0), "dropout": train.dropout}
    size = (model.image_size, model.image_width or model.image_size) if model.image_size else None  # its own
    checkpoint = load(model.start, channels=model.channels, image_size=size, **extra)
    if checkpoint.task == task.name == "regress" and checkpoint.labels == task.labels:
        for head in (checkpoint.model.head, checkpoint.model.distillation_head):
            if isinstance(head, Head):
                task.unfold(head.out)  # it answers in real units, and learns in standardised ones
    checkpoint = adapt(checkpoint, labels=task.labels, head=head_fields(settings, task))
    own = checkpoint.preprocessing
    fraction = 1.0 if task.dense else model.crop_fraction or own.crop_fraction  # places are asked of all of a picture
    checkpoint.preprocessing = own.replace(resize=model.resize, crop_fraction=fraction)
    checkpoint.task = task.name
    return checkpoint


def fresh_model(start: Checkpoint, settings: Settings, device: torch.device) -> ViT:
    """A copy of the start, ready to be trained."""
    model = ViT(start.config)
    model.load_state_dict(start.model.state_dict())
    torch.manual_seed(settings.train.seed)
    if settings.model.train_only == "lora":
        add_low_rank(model, settings.model.lora_rank)
    choose_trained(model, settings.model.train_only)
    if isinstance(model.stem, ConvStem):
        model.stem.frozen = settings.model.train_only != "all"
    model.checkpointing = settings.train.checkpointing
    return model.to(device).train()


def rates_of(settings: Settings) -> Rates:
    train = settings.train
    return Rates(
        adamw=train.lr,
        muon=train.muon_lr if train.optimizer == "muon" else None,
        weight_decay=train.weight_decay,
        layer_decay=train.layer_decay if settings.model.start else 1.0,
    )


def feed_of(
    settings: Settings,
    store: Store,
    truths: Truths,
    order: Order,
    preprocessing: Preprocessing,
    share: tuple[int, int],
) -> Feed:
    """What is still to be chosen, while the pace is measured, is taken to be the dearest."""
    train, augment = settings.train, settings.augment
    crop = augment.crop or 0.5
    narrowest = max(crop, 3 / 4)  # another aspect cuts away too: a picture that is kept whole keeps its own
    return Feed(
        store=store,
        truths=truths,
        order=order,
        preprocessing=preprocessing,
        augmentation=Augmentation(
            crop=(crop, 1.0),
            aspect=(narrowest, 1 / narrowest),
            flip="horizontal" if augment.flip == "auto" else augment.flip,
            policy="trivial" if augment.policy == "auto" else augment.policy,
            changes=augment.changes,
            strength=augment.strength,
            erase=max(augment.erase, 0.0),
        ),
        mixup=max(train.mixup, 0.0),
        cutmix=max(train.cutmix, 0.0),
        seed=train.seed,
        share=share,
        workers=settings.data.workers,
    )
