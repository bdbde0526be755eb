"""The image size by the time there is: enough epochs first, then pixels.

A segmenter that sees every image twice at 512 px knows less than one that sees it eleven times at 256 px. What a step
takes on this machine is measured once, at a small size; other sizes follow from their multiply-adds.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from vitrail.model.cost import multiply_adds
from vitrail.model.encoder_config import EncoderConfig
from vitrail.model.precision import autocast
from vitrail.model.presets import build_network
from vitrail.training.choices.facts import Facts
from vitrail.training.choices.model_choice import DENSE_LONGEST, PHOTO, Choice, choose_model, keeps_aspect, size_for
from vitrail.training.optim.optimizers import Rates, optimizers
from vitrail.training.settings import Settings
from vitrail.training.teacher import Teacher

ENOUGH_EPOCHS = 10.0
SHARES = (1.0, 0.8, 0.65, 0.5, 0.4, 0.3)  # of the largest size, by side
# Classes of photos from scratch, one core of a Zen 5, one run each, accuracy on the test part at 128 px and at 224 px
# (how often each image was seen): 1,161 drawings in 11 classes, 8 minutes 49.1 % (96) and 47.4 % (39), 16 minutes
# 53.9 % (178) and 50.2 % (78); 328 of them, 8 minutes 34.8 % (237) and 30.7 % (118). So up to some 120 times 224 px do
# not pay. The epochs that are estimated below are about 0.4 of these. benchmarks/results/defaults.md has more.
LARGE_PHOTO, PHOTO_ENOUGH_EPOCHS = 224, 80.0
# Fine-tuning: the more patches, the more often must an image be seen before they pay. DeiT-Ti on one core for 2
# minutes, one run each, at 224, 160 and 128 px: 100 photos of flowers 61.8 % (41 epochs), 65.8 (99) and 65.2 (160), 200
# cats and dogs 88.1 % (20), 89.4 (48) and 86.9 (81). For 15 minutes, 3,430 flowers: 82.0 % (8), 81.8 (25), 82.9 (40).
# The epochs that are estimated below are about half of these.
TUNED_ENOUGH_EPOCHS = 40.0  # at the published size; at a smaller one as many times fewer as it has fewer pixels
TUNED_SHARES = (1.0, 5 / 7, 4 / 7)  # of the published size: 224, 160, 128 px
SMALLEST = 96  # pixels of the longer side, below which little is to be seen
LEARNING = 0.7  # the part of the time that is left for steps, beside decoding, evaluations and the end
STEP_OVERHEAD = 1.5  # forward and backward with augmentation and the task's loss, against those alone
MEASURED_SIDE = 160  # pixels
MEASURED_IMAGES = 4
Size = tuple[int, int]  # height, width


@dataclass(frozen=True)
class TimedSize:
    size: Size
    epochs: float  # that fit into the time


def candidate_sizes(facts: Facts, patch: int) -> list[Size]:
    """From the largest that is useful to the smallest, at the usual aspect of the images, in whole patches."""
    longest = max(facts.height, facts.width)
    goal = min(longest, DENSE_LONGEST)
    sizes: list[Size] = []
    for share in SHARES:
        side = max(share * goal, min(goal, SMALLEST))
        height, width = (max(patch, round(own * side / longest / patch) * patch) for own in (facts.height, facts.width))
        if (height, width) not in sizes:
            sizes.append((height, width))
    return sizes


def photo_sides(facts: Facts) -> list[int]:
    """For classes: the usual side, and before it a larger one where photos have so many pixels."""
    shorter = min(facts.height, facts.width)
    return [LARGE_PHOTO, PHOTO] if shorter >= LARGE_PHOTO else [size_for(shorter)]


def candidate_configs(settings: Settings, facts: Facts, config: EncoderConfig) -> list[EncoderConfig]:
    """The network `config` at each size that it may have, from the largest on."""
    if keeps_aspect(facts):
        return [config.replace(image_size=size) for size in candidate_sizes(facts, config.patch_size[0])]
    configs: list[EncoderConfig] = []
    for side in photo_sides(facts):
        model = choose_model(settings.with_values({"model.image_size": side}), facts).settings.model
        assert model.image_size is not None and model.patch_size is not None
        if model.image_size % model.patch_size == 0:  # else the patches that were asked for do not fit
            size, patch = (model.image_size, model.image_size), (model.patch_size, model.patch_size)
            configs.append(config.replace(image_size=size, patch_size=patch))
    return configs


def tuned_sizes(config: EncoderConfig) -> list[Size]:
    """The size of a model and smaller ones, in whole patches, down to where little is to be seen: a model of small
    pictures, such as one that was pretrained on them, keeps its size."""
    sizes: list[Size] = []
    for share in TUNED_SHARES:
        if sizes and share * max(config.image_size) < SMALLEST:
            break
        height, width = (
            max(1, round(share * side / patch)) * patch
            for side, patch in zip(config.image_size, config.patch_size, strict=True)
        )
        if (height, width) not in sizes:
            sizes.append((height, width))
    return sizes


def size_for_time(
    sizes: Sequence[Size],
    image_seconds: Sequence[float],
    images: int,
    seconds: float,
    enough: Sequence[float],
) -> TimedSize:
    """The largest of `sizes` whose images can all be seen often enough in so many seconds, else the smallest.

    image_seconds: what one image takes in a training step, enough: how many epochs there must be, at each size.
    """
    timed = [TimedSize(size, seconds / (images * each)) for size, each in zip(sizes, image_seconds, strict=True)]
    return next((one for one, epochs in zip(timed, enough, strict=True) if one.epochs >= epochs), timed[-1])


@dataclass(frozen=True)
class StepCost:
    """What a training step takes on this machine."""

    multiply_add_seconds: float  # forward and backward, for each multiply-add of the forward pass
    optimizer_seconds: float  # once a step, whatever the size
    teacher_seconds: float = 0.0  # an image, which the teacher sees at its own size

    def per_image(self, config: EncoderConfig, batch: int) -> float:
        """Seconds of one image in a batch."""
        network = STEP_OVERHEAD * self.multiply_add_seconds * multiply_adds(config, 1)
        return network + self.optimizer_seconds / batch + self.teacher_seconds


def measure_step_cost(config: EncoderConfig, device: torch.device, precision: str, muon: bool) -> StepCost:
    """Measured on random images, with a network that is thrown away."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        network = build_network(config).to(device).train()
        images = torch.randn(MEASURED_IMAGES, config.channels, *config.image_size, device=device)
    rules = optimizers(network, Rates(adamw=1e-3, muon=0.02 if muon else None))
    fastest = [float("inf"), float("inf")]
    for _ in range(4):  # the first ones wait for memory that is new to the process
        began = time.perf_counter()
        with autocast(device, precision):
            outputs = network(images)
        _stand_in_loss(outputs).backward()
        between = _now(device)
        for optimizer in rules:
            optimizer.step()
        fastest = [min(fastest[0], between - began), min(fastest[1], _now(device) - between)]
    return StepCost(fastest[0] / multiply_adds(config, MEASURED_IMAGES), fastest[1])


def measure_teacher(teacher: Teacher, precision: str) -> float:
    """Seconds that the teacher needs for one image."""
    device, own = next(teacher.network.parameters()).device, teacher.preprocessing
    images = torch.zeros(MEASURED_IMAGES, own.channels, *own.size, device=device)
    fastest = float("inf")
    for _ in range(3):
        began = time.perf_counter()
        with autocast(device, precision):
            teacher.outputs(images, own)
        fastest = min(fastest, _now(device) - began)
    return fastest / MEASURED_IMAGES


def _stand_in_loss(outputs: Tensor | tuple[Tensor, ...]) -> Tensor:
    """A number that depends on every output: a box decoder gives several tensors while it trains, and anchors among
    them do not learn."""
    parts = (outputs,) if isinstance(outputs, Tensor) else outputs
    return torch.stack([part.float().square().sum() for part in parts if part.requires_grad]).sum()


def _now(device: torch.device) -> float:
    if device.type == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter()


def fit_size_to_time(
    settings: Settings, facts: Facts, choice: Choice, configs: Sequence[EncoderConfig], cost: StepCost
) -> Choice:
    """The choice again, at the size that the minutes suffice for. `configs`: the chosen network at each size."""
    enough = ENOUGH_EPOCHS if keeps_aspect(facts) else PHOTO_ENOUGH_EPOCHS
    (height, width), reasons = _fit(configs, facts, choice, cost, [enough] * len(configs))
    usual = choice.settings.model
    if (height, width) == (usual.image_size, usual.image_width or usual.image_size):
        return Choice(choice.settings, (*choice.reasons, *reasons))
    chosen = choose_model(settings.with_values({"model.image_size": height, "model.image_width": width}), facts)
    return Choice(chosen.settings, (*chosen.reasons, *reasons))


def fit_tuned_size_to_time(facts: Facts, choice: Choice, config: EncoderConfig, cost: StepCost) -> Choice:
    """The choice of a model that is fine-tuned, at the size that the minutes suffice for: that of `config`, its own, or
    a smaller one."""
    configs = [config.replace(image_size=size) for size in tuned_sizes(config)]
    enough = [TUNED_ENOUGH_EPOCHS * math.prod(one.image_size) / math.prod(configs[0].image_size) for one in configs]
    (height, width), reasons = _fit(configs, facts, choice, cost, enough)
    if (height, width) == configs[0].image_size:
        return choice
    values = {"model.image_size": height, "model.image_width": width}
    return Choice(choice.settings.with_values(values), (*choice.reasons, *reasons))


def _fit(
    configs: Sequence[EncoderConfig], facts: Facts, choice: Choice, cost: StepCost, enough: Sequence[float]
) -> tuple[Size, tuple[str, ...]]:
    """The size that suits the time, and why, unless it is the largest."""
    assert facts.minutes is not None
    batch = choice.settings.train.batch_size or 1
    per_size = [cost.per_image(config, batch) for config in configs]
    sizes = [config.image_size for config in configs]
    timed = size_for_time(sizes, per_size, facts.images, LEARNING * 60 * facts.minutes, enough)
    if timed.size == sizes[0]:
        return timed.size, ()
    height, width = timed.size
    wanted = enough[0] * facts.images * per_size[0] / LEARNING / 60
    reason = (
        f"size: {width} x {height} px, so that there is time to see each image often; "
        f"{wanted:.0f} minutes would allow {sizes[0][1]} x {sizes[0][0]} px"
    )
    return timed.size, (reason,)


def small_config(config: EncoderConfig) -> EncoderConfig:
    """The same network at a size that is quickly measured."""
    patch = config.patch_size
    scale = min(1.0, MEASURED_SIDE / max(config.image_size))
    height, width = (
        max(own_patch, round(side * scale / own_patch) * own_patch)
        for side, own_patch in zip(config.image_size, patch, strict=True)
    )
    return config.replace(image_size=(height, width))
