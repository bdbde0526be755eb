"""The parts of a run, made from complete settings: the model at its start, its optimizers' rates, what feeds it."""

from __future__ import annotations

from typing import Any

import torch

from vitrail.data.augment import Augmentation
from vitrail.data.feed import Feed
from vitrail.data.order import Order
from vitrail.data.store import Store
from vitrail.model.vit import ViT
from vitrail.training.choose import config_of
from vitrail.training.lora import add_low_rank
from vitrail.training.parameters import Rates, choose_trained
from vitrail.training.settings import Settings
from vitrail.weights.checkpoint import Checkpoint
from vitrail.weights.load import load
from vitrail.weights.preprocessing import Preprocessing


def starting_point(settings: Settings, task: str, labels: list[str]) -> Checkpoint:
    """The model that a run starts from: fresh, or loaded and fitted to these labels."""
    model, train = settings.model, settings.train
    torch.manual_seed(train.seed)
    if model.start:
        extra: dict[str, Any] = {"drop_path": max(train.drop_path, 0.0), "dropout": train.dropout}
        checkpoint = load(model.start, labels=labels, channels=model.channels, image_size=model.image_size, **extra)
        checkpoint.preprocessing = checkpoint.preprocessing.replace(resize=model.resize)
        checkpoint.task = task
        return checkpoint
    network = ViT(config_of(settings, len(labels)))
    rule = "crop" if model.resize == "auto" else model.resize
    preprocessing = Preprocessing(size=network.config.image_size, resize=rule)
    return Checkpoint(network, preprocessing.for_channels(network.config.channels), task, labels)


def fresh_model(start: Checkpoint, settings: Settings, device: torch.device) -> ViT:
    """A copy of the start, ready to be trained."""
    model = ViT(start.config)
    model.load_state_dict(start.model.state_dict())
    torch.manual_seed(settings.train.seed)
    if settings.model.train_only == "lora":
        add_low_rank(model, settings.model.lora_rank)
    choose_trained(model, settings.model.train_only)
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
    settings: Settings, store: Store, order: Order, preprocessing: Preprocessing, share: tuple[int, int]
) -> Feed:
    """What is still to be chosen (it is while the pace is measured) costs nothing there."""
    train, augment = settings.train, settings.augment
    return Feed(
        store=store,
        order=order,
        preprocessing=preprocessing,
        augmentation=Augmentation(
            crop=(augment.crop or 0.5, 1.0),
            flip="horizontal" if augment.flip == "auto" else augment.flip,
            policy="none" if augment.policy == "auto" else augment.policy,
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
