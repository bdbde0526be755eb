"""The image size of a dense task by the time there is: enough epochs first, then pixels.

A segmenter that sees every image twice at 512 px knows less than one that sees it eleven times at 256 px. What a step
takes on this machine is measured once, at a small size; other sizes follow from their multiply-adds.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from vitrail.model.cost import multiply_adds
from vitrail.model.encoder_config import EncoderConfig
from vitrail.model.networks import build_network
from vitrail.model.precision import autocast
from vitrail.training.choices.facts import Facts
from vitrail.training.choices.model_choice import DENSE_LONGEST, Choice, choose_model
from vitrail.training.optim.optimizers import Rates, optimizers
from vitrail.training.settings import Settings

ENOUGH_EPOCHS = 10.0
SHARES = (1.0, 0.8, 0.65, 0.5, 0.4, 0.3)  # of the largest size, by side
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


def size_for_time(sizes: Sequence[Size], image_seconds: Sequence[float], images: int, seconds: float) -> TimedSize:
    """The largest of `sizes` whose images can all be seen often enough in so many seconds, else the smallest.

    image_seconds: what one image takes in a training step, at each size.
    """
    timed = [TimedSize(size, seconds / (images * each)) for size, each in zip(sizes, image_seconds, strict=True)]
    return next((one for one in timed if one.epochs >= ENOUGH_EPOCHS), timed[-1])


@dataclass(frozen=True)
class StepCost:
    """What a training step takes on this machine."""

    image_seconds: float  # forward and backward of one image, at the size of the measured network
    optimizer_seconds: float  # once a step, whatever the size

    def per_image(self, larger: float, batch: int) -> float:
        """Seconds of one image in a batch, at a size whose forward pass has so many times the multiply-adds."""
        return STEP_OVERHEAD * self.image_seconds * larger + self.optimizer_seconds / batch


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
        outputs.float().square().mean().backward()
        between = _now(device)
        for optimizer in rules:
            optimizer.step()
        fastest = [min(fastest[0], between - began), min(fastest[1], _now(device) - between)]
    return StepCost(fastest[0] / MEASURED_IMAGES, fastest[1])


def _now(device: torch.device) -> float:
    if device.type == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter()


def fit_size_to_time(settings: Settings, facts: Facts, choice: Choice, config: EncoderConfig, cost: StepCost) -> Choice:
    """The choice again, at the size that the minutes suffice for. `cost`: measured, at the size of `config`; `config`:
    the chosen network at a small size."""
    assert facts.minutes is not None
    batch = choice.settings.train.batch_size or 1
    sizes = candidate_sizes(facts, config.patch_size[0])
    measured = multiply_adds(config, 1)
    per_size = [cost.per_image(multiply_adds(config.replace(image_size=size), 1) / measured, batch) for size in sizes]
    timed = size_for_time(sizes, per_size, facts.images, LEARNING * 60 * facts.minutes)
    if timed.size == sizes[0]:
        return choice
    height, width = timed.size
    chosen = choose_model(settings.with_values({"model.image_size": height, "model.image_width": width}), facts)
    wanted = ENOUGH_EPOCHS * facts.images * per_size[0] / LEARNING / 60
    reason = (
        f"size: {width} x {height} px, so that each image is seen about {timed.epochs:.0f} times; {wanted:.0f} minutes "
        f"would allow {sizes[0][1]} x {sizes[0][0]} px"
    )
    return Choice(chosen.settings, (*chosen.reasons, reason))


def small_config(config: EncoderConfig) -> EncoderConfig:
    """The same network at a size that is quickly measured."""
    patch = config.patch_size
    scale = min(1.0, MEASURED_SIDE / max(config.image_size))
    height, width = (
        max(own_patch, round(side * scale / own_patch) * own_patch)
        for side, own_patch in zip(config.image_size, patch, strict=True)
    )
    return config.replace(image_size=(height, width))
