"""Decode every image of a run once: the training images into a cache, the held-out ones as `predict` prepares them.

What is broken is found here, named and left out before the first step.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

import numpy as np
from torch import Tensor, nn

from vitrail.data.loading.cache import ArrayCache, CacheSubset, ImageCache, NoCache, Shape, fits_in_memory, open_cache
from vitrail.data.loading.rng import permutation
from vitrail.data.loading.unlabelled_loader import Pile
from vitrail.dataset import SPLITS, Item, ManyItems, Sources, targets_in
from vitrail.errors import VitrailError
from vitrail.images.unreadable import UnreadableImage
from vitrail.inference.evaluation import MEASURED_IN
from vitrail.inference.image_processor import ImageProcessor
from vitrail.tasks.dense_task import DenseTask
from vitrail.tasks.targets import DenseTargets, LazyTargets, Targets, TargetScan, TargetSubset, WholeImageTargets
from vitrail.tasks.task import Task
from vitrail.training.auxiliary.distillation import Distillation
from vitrail.training.choices.facts import Facts
from vitrail.training.choices.mirror_symmetry import taken_from_one_side
from vitrail.training.choices.model_choice import choose_view
from vitrail.training.distributed import Processes
from vitrail.training.run_context import Run
from vitrail.training.settings import Settings
from vitrail.training.stages.image_statistics import cached_shape, mean_and_std
from vitrail.training.stages.read_data import NAMED, TrainingData, make_task
from vitrail.training.validate import HeldOutImages, HeldOutTargets, compare_with_targets, outputs_of
from vitrail.weights.checkpoint import Checkpoint
from vitrail.weights.preprocessing import Preprocessing

MASK_SHARE = 0.25  # of the memory for decoded images, for masks
QUICK_IMAGES = 2000  # held-out images that are measured on the way, at most
CALIBRATION_IMAGES = 100  # at least, where there are so many
HELD_OUT = ("val", "test")
ENOUGH_IMAGES, ENOUGH_OBJECTS = 200, 100  # for validation, to choose the best weights by


@dataclass(frozen=True, kw_only=True)
class TrainingImages:
    """What a run learns from and is measured on."""

    data: TrainingData  # without what turned out to be broken
    task: Task  # fitted to the training targets
    settings: Settings
    facts: Facts
    preprocessing: Preprocessing
    cache: ImageCache  # of the training images
    targets: Mapping[str, Targets]  # of train, val and test
    held_out: Mapping[str, HeldOutImages]  # val and test
    quick_images: int | None = None  # validation images of an evaluation on the way; None: QUICK_IMAGES
    distillation: Distillation | None = None  # a teacher, who is asked about the training images
    pile: Pile | None = None  # pictures without labels beside them

    @property
    def validation_indices(self) -> list[int]:
        """A fixed part of the validation images, so that evaluating a large set does not eat the time."""
        return self.sample("val", self.quick_images or QUICK_IMAGES)

    def sample(self, split: str, count: int) -> list[int]:
        """Indices of so many images of a split, the same in every call."""
        order = permutation(self.settings.train.seed, 0, len(self.held_out[split]))
        return sorted(order[:count].tolist())

    @property
    def can_choose_best(self) -> bool:
        """Whether the validation images that are measured on the way are enough to tell the best weights of a run from
        the luckiest.

        Of 42 photos with an object each, the luckiest of twelve evaluations had AP50 0.62, the last weights 0.35: so
        much would the choice have flattered the report.
        """
        return self.are_enough(self.validation_indices)

    def are_enough(self, indices: Sequence[int]) -> bool:
        """Whether a choice that is made by these validation images changes no score that is measured on them."""
        if len(indices) < ENOUGH_IMAGES or not self.task.finds_objects:
            return len(indices) >= ENOUGH_IMAGES
        validation = self.data.dataset.part("val")
        return sum(len(validation[index].classes()) for index in indices) >= ENOUGH_OBJECTS

    @property
    def measured_split(self) -> str:
        """Where the model is measured at the end: on the test part, if there is one."""
        return "test" if len(self.held_out["test"]) else "val"

    @property
    def calibration_indices(self) -> list[int]:
        """The validation images that choose temperature, threshold and overlap of a model that is measured on the test
        part. Evaluations on the way may take fewer."""
        return self.sample("val", max(self.quick_images or QUICK_IMAGES, CALIBRATION_IMAGES))

    @property
    def calibration_images(self) -> int:
        """How many validation images are run after the last step, beside those that the model is measured on."""
        return len(self.calibration_indices) if self.measured_split == "test" and self.task.calibrates else 0

    @property
    def measured_at_end(self) -> int:
        """How many images are run after the last step: the calibration's, and those of the measure."""
        return len(self.held_out[self.measured_split]) + self.calibration_images


@dataclass(frozen=True)
class _View:
    """How the model is shown an image, chosen from the training images."""

    settings: Settings
    facts: Facts
    preprocessing: Preprocessing


def decode_images(run: Run, settings: Settings, data: TrainingData, task: Task, start: Checkpoint) -> TrainingImages:
    """Fill the cache, read the targets and the held-out images once, and leave out what is broken."""
    start = replace(start, preprocessing=with_bits(start.preprocessing, data.bits))
    shape = cached_shape(data.sizes, start.preprocessing)
    targets = {split: targets_of(data.dataset.part(split), task, settings, shape) for split in SPLITS}
    scans = {split: scan_targets(targets[split], task) for split in SPLITS}
    cache = _open_cache(run, settings, data, shape)
    broken = {"train": cache.broken | scans["train"].broken}
    if broken["train"]:
        cache = CacheSubset(cache, len(data.train), broken["train"])
    readable: Sequence[int] = range(len(data.train))
    if broken["train"]:
        readable = [index for index in readable if index not in broken["train"]]
    view = _choose_view(run, settings, data, start, cache, readable)
    held_out = {split: _held_out(data, split, view) for split in HELD_OUT}
    for split in HELD_OUT:
        broken[split] = held_out[split].look() | scans[split].broken
    if isinstance(task, DenseTask):
        task.fit_statistics([scans["train"].statistics[index] for index in readable])
    images = TrainingImages(
        data=data,
        task=task,
        settings=view.settings,
        facts=view.facts,
        preprocessing=view.preprocessing,
        cache=cache,
        targets=targets,
        held_out=held_out,
    )
    return leave_out(run, images, broken) if any(broken.values()) else images


def with_bits(preprocessing: Preprocessing, bits: int | None) -> Preprocessing:
    """With the bit depth of the data; a model that is fine-tuned keeps its own where that holds the data's."""
    depths = [depth for depth in (preprocessing.bits, bits) if depth is not None]
    return preprocessing.replace(bits=max(depths, default=None))


def leave_out(run: Run, images: TrainingImages, broken: Mapping[str, Mapping[int, UnreadableImage]]) -> TrainingImages:
    """The rest, without what is broken in each split, by index. The cache is without it already."""
    items = {split: images.data.dataset.part(split) for split in SPLITS}
    errors = {items[split][index].path: error for split in SPLITS for index, error in broken[split].items()}
    _say_broken(run, errors)
    settings, data = images.settings, images.data.without(errors)
    task = images.task if images.task.dense else make_task(data, settings)
    targets: dict[str, Targets] = {}
    for split in SPLITS:
        if not task.dense:
            targets[split] = WholeImageTargets(task.encode(targets_in(data.dataset.part(split))))
        else:
            dense = cast("DenseTargets", images.targets[split])
            targets[split] = TargetSubset(dense, len(items[split]), broken[split])
    view = _View(settings, images.facts, images.preprocessing)
    assert settings.train.batch_size is not None
    batch = min(settings.train.batch_size, len(data.train))
    return replace(
        images,
        data=data,
        task=task,
        settings=settings.with_values({"train.batch_size": batch}),
        facts=replace(images.facts, images=len(data.train)),
        targets=targets,
        held_out={split: _held_out(data, split, view) for split in HELD_OUT},
    )


def _open_cache(run: Run, settings: Settings, data: TrainingData, shape: Shape) -> ImageCache:
    options, gigabytes = settings.data, settings.data.cache_gigabytes / run.processes.world
    sources, mode = Sources(data.train), options.cache
    if isinstance(data.train, ManyItems):  # which of these are broken is known, and a file of them may be enormous
        mode = mode or ("memory" if fits_in_memory(len(sources) * shape.bytes, gigabytes) else "off")
        if mode == "off":
            return NoCache(sources, shape, options.workers)
    counter = run.progress.counter("decoding images")
    cache = open_cache(sources, shape, mode, gigabytes, options.workers, counter)
    if cache.broken and isinstance(data.train, ManyItems):
        raise VitrailError(f"{next(iter(cache.broken.values()))}: it was readable a moment ago; run the command again")
    if isinstance(cache, ArrayCache):
        for note in cache.notes:
            run.progress.say(f"  warning: {note}")
    return cache


def _choose_view(
    run: Run, settings: Settings, data: TrainingData, start: Checkpoint, cache: ImageCache, readable: Sequence[int]
) -> _View:
    """Whether images are taken alike, how much of one is shown, and the colours that they are normalised by."""
    facts = data.facts(run.processes.device.type, settings.train.minutes)
    task = facts.task_class
    if not run.request.resume and task.classifies_images:
        groups = _groups(data.train, readable) if task.one_class_each else [None] * len(readable)
        facts = replace(facts, alike=taken_from_one_side(cache, groups))
    if settings.model.start is not None:
        return _View(settings, facts, start.preprocessing)
    settings = choose_view(settings, facts)
    fraction = 1.0 if task.dense else settings.model.crop_fraction
    preprocessing = start.preprocessing.replace(crop_fraction=fraction)
    if settings.model.cnn is None:  # a pre-trained CNN expects the colours that it was trained with
        mean, std = mean_and_std(cache, len(readable))
        preprocessing = preprocessing.replace(mean=mean, std=std)
    return _View(settings, facts, preprocessing)


def _groups(items: Sequence[Item], readable: Sequence[int]) -> Sequence[Any]:
    """The class of each image that can be read."""
    return targets_in(items) if isinstance(items, ManyItems) else [items[index].target for index in readable]


def _held_out(data: TrainingData, split: str, view: _View) -> HeldOutImages:
    sources = [item.source for item in data.dataset.part(split)]
    processor = ImageProcessor(view.preprocessing, view.facts.task_class.dense)
    return HeldOutImages(sources, processor, view.settings.data.workers)


def targets_of(items: Sequence[Item], task: Task, settings: Settings, shape: Shape) -> Targets:
    """The targets of some items, as the loader takes them."""
    if not isinstance(task, DenseTask):
        return WholeImageTargets(task.encode(targets_in(items)))
    room = MASK_SHARE * settings.data.cache_gigabytes
    return task.targets(items, (shape.height, shape.width), room, settings.data.workers)


def scan_targets(targets: Targets, task: Task) -> TargetScan:
    """One pass over targets that are files, such as masks: which are broken, and what the task fits to."""
    if not isinstance(task, DenseTask):
        return TargetScan({}, {})
    return cast("DenseTargets", targets).scan(task.statistics)


def _say_broken(run: Run, broken: Mapping[Path, UnreadableImage]) -> None:
    for error in list(broken.values())[:NAMED]:
        run.progress.say(f"  warning: {error}; left out")
    if len(broken) > NAMED:
        run.progress.say(f"  warning: {len(broken) - NAMED} more broken files are left out; the report names them")


# ---- measuring on the held-out images


def quick_metrics(
    images: TrainingImages, network: nn.Module, processes: Processes, precision: str | None = None
) -> dict[str, float]:
    """What an evaluation on the way tells, on a fixed part of the validation images.

    precision: None is the one that is trained in: a score that picks the best weights need not be slower than steps.
    """
    precision, indices = precision or images.settings.train.precision or "auto", images.validation_indices
    images.held_out["val"].keep(indices)
    outputs, targets, loss = held_out_outputs(images, network, "val", processes, indices, precision)
    metrics = images.task.quick_metrics(outputs, targets)
    return metrics if loss is None else {"loss": loss, **metrics}


def held_out_outputs(
    images: TrainingImages,
    network: nn.Module,
    split: str,
    processes: Processes,
    indices: Sequence[int] | None = None,
    precision: str = MEASURED_IN,
    pooled: list[Tensor] | None = None,
) -> tuple[Tensor, Tensor, float | None]:
    """The model's outputs for held-out images, their targets, and the loss where the metrics do not give it.

    pooled: is given what the head reads of each image, (D,)."""
    held_out, targets = images.held_out[split], images.targets[split]
    chosen = list(range(len(held_out))) if indices is None else list(indices)
    if isinstance(targets, WholeImageTargets):
        outputs = outputs_of(network, held_out, chosen, processes, precision, pooled)
        return outputs, targets.take(np.array(chosen)), None
    task, dense = images.task, cast("DenseTargets", targets)
    assert isinstance(task, DenseTask)
    truth = HeldOutTargets(dense, chosen)
    rows, loss = compare_with_targets(network, task, held_out, truth, processes, precision, pooled)
    return rows, task.encode(LazyTargets(dense, chosen)), loss
