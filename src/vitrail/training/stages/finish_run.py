"""After the last step: the best weights as a plain model, calibrated, measured, and written as one file."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from vitrail import __version__
from vitrail.data.image_groups import group_images
from vitrail.dataset import Item
from vitrail.findings import Finding
from vitrail.model.encoder import Encoder
from vitrail.tasks.task import Task
from vitrail.training.checkpointing import collect_tensors, restore_tensors
from vitrail.training.loop import TrainState
from vitrail.training.optim.batch_norm import recomputed_statistics
from vitrail.training.optim.lora import merge_low_rank
from vitrail.training.plan import Plan
from vitrail.training.run_context import Run
from vitrail.training.run_folder import RunFolder
from vitrail.training.settings import Settings
from vitrail.training.stages.build_trainer import trainable
from vitrail.training.stages.decode_images import TrainingImages, held_out_outputs
from vitrail.training.stages.learn_familiarity import Learnt, learn_familiarity, time_for
from vitrail.training.stages.make_plan import FEWEST_FINAL, REPORT, FinalCost, Planned, smallest_final
from vitrail.training.stages.nested_split import nested_metrics, nested_note
from vitrail.training.train_step import Trainer
from vitrail.weights.checkpoint import Checkpoint

LATE = 0.05  # of the time, by which it may be late rather than measure fewer than SMALLEST_FINAL
GRACE = 0.01  # of the time, by which a run may rather be late than measure a part of its images


@dataclass(frozen=True, kw_only=True)
class Finished:
    """A run at its end, with all that its report tells."""

    folder: RunFolder
    checkpoint: Checkpoint
    task: Task
    settings: Settings
    plan: Plan
    state: TrainState
    description: str
    findings: Sequence[Finding]
    results: dict[str, Any]
    part: str
    items: Sequence[Item]  # those that it was measured on
    sampled: str  # what is to be said where these are not all of that part
    root: Path
    learnt: Learnt | None  # what the model makes of pictures of the run


@dataclass(frozen=True)
class Measured:
    """A calibrated model and its complete measure."""

    model: Encoder
    results: dict[str, Any]
    split: str  # of the images that it was measured on
    indices: Sequence[int]  # of these images in it
    validated: Sequence[int]  # validation images whose vectors are known
    vectors: Tensor  # (H, D), what the head reads of these


def best_model(run: Run, trainer: Trainer, start: Checkpoint, settings: Settings) -> Encoder:
    """The best weights of the run in the plain model that it started from, whatever it was trained with."""
    best = run.processes.from_main(run.checkpoints.load_best)  # which wrote it: another might read it too early
    if best is not None:
        tensors = best.tensors
    else:
        with recomputed_statistics(trainer):
            tensors = {name: tensor.clone() for name, tensor in collect_tensors(trainer.encoder, (), None).items()}
    model = trainable(start.model, settings, run.processes.device)
    restore_tensors(tensors, model, (), None)
    merge_low_rank(model)
    return model.eval().requires_grad_(True)


def calibrate(run: Run, images: TrainingImages, model: Encoder, plan: Plan, state: TrainState) -> Measured:
    """Choose the decoding and fit the temperature on the validation images, fold it into the last layer, and measure:
    on the test part where there is one, and on a sample of it where the time does not suffice for all."""
    task, split = images.task, images.measured_split
    calibration, count = run.processes.from_main(  # each has a clock of its own
        lambda: (calibration_in_time(images, plan, state), images_in_time(images, plan, state))
    )
    indices = images.sample(split, count)
    groups = run.processes.from_main(lambda: groups_of(images, split, indices))
    nested: dict[str, float] = {}
    pooled: list[Tensor] = []
    calibrated_on = indices
    if split == "test":
        calibrated_on = images.sample("val", calibration) if task.calibrates else images.calibration_indices
    if split == "val" or task.calibrates:
        undecided = replace(images, task=task.without_decoding_choices())
        outputs, targets, _ = held_out_outputs(undecided, model, "val", run.processes, calibrated_on, pooled=pooled)
        if split == "val" and task.calibrates and not images.are_enough(indices):
            nested = nested_metrics(task, outputs, targets, groups, images.settings.train.seed)
        outputs = task.choose_decoding(outputs, targets)
        task.calibrate(outputs, targets)
    if split == "test":
        outputs, targets, _ = held_out_outputs(images, model, "test", run.processes, indices)
    results = task.evaluate(task.meant(outputs), targets, seed=images.settings.train.seed, groups=groups)
    results["chose_weights"] = split == "val" and images.can_choose_best
    if note := nested_note(task, results["metrics"], nested, len(indices)):
        results |= {"nested": nested, "notes": [*results.get("notes", ()), note]}
    for layer in model.output_layers():
        task.fold(layer)
    vectors = torch.stack(pooled) if pooled else torch.empty(0, model.config.pooled_width)
    return Measured(model.cpu(), results, split, indices, calibrated_on, vectors)


def groups_of(images: TrainingImages, split: str, indices: Sequence[int]) -> list[int] | None:
    """Which of the measured images belong together."""
    items = images.data.dataset.part(split)
    return group_images([items[index] for index in indices], images.held_out[split].signatures(indices))


def images_in_time(images: TrainingImages, plan: Plan, state: TrainState) -> int:
    """How many images can be measured before the deadline, at the speed of the last evaluations; at least some."""
    available = len(images.held_out[images.measured_split])
    if not plan.deadline:
        return available
    cost = final_cost(images, plan)
    left = time_left(images, plan, state) - calibration_in_time(images, plan, state) * cost.measured
    if cost.seconds(available) <= left + GRACE * plan.deadline:
        return available
    late = cost.images(max(0.0, left) + LATE * plan.deadline)
    return min(available, max(cost.images(left), smallest_final(late)))


def calibration_in_time(images: TrainingImages, plan: Plan, state: TrainState) -> int:
    """How many validation images are run beside those that the model is measured on. Where there is no time for all,
    about as many as are measured; at least as many as an evaluation on the way takes."""
    if not plan.deadline or not images.calibration_images:
        return images.calibration_images
    affordable = final_cost(images, plan).images(max(0.0, time_left(images, plan, state)) + GRACE * plan.deadline)
    measured = min(len(images.held_out[images.measured_split]), affordable // 2)
    fewest = max(FEWEST_FINAL, len(images.validation_indices))
    return min(images.calibration_images, max(fewest, affordable - measured))


def final_cost(images: TrainingImages, plan: Plan) -> FinalCost:
    """What an image takes in the last measure, at the speed of the last evaluations."""
    assert plan.timing is not None
    timing = plan.timing
    seconds = timing.final_slower * (timing.image or timing.evaluation / len(images.validation_indices))
    return FinalCost(seconds, seconds if images.task.dense else 0.0)


def time_left(images: TrainingImages, plan: Plan, state: TrainState) -> float:
    """Seconds until the deadline, beside those for the report; below 0 where it is over."""
    return plan.deadline - state.seconds - REPORT - time_for(images)


def write_model(
    run: Run, images: TrainingImages, planned: Planned, start: Checkpoint, state: TrainState, measured: Measured
) -> Finished:
    """The model file, with all that is needed to use it."""
    history = provenance(planned.settings, images, state, measured)
    learnt = learn_familiarity(run, images, measured.model, measured.validated, measured.vectors)
    checkpoint = replace(
        start,
        model=measured.model,
        provenance=start.provenance | {"source": "vitrail train", "training": history},
        familiarity=None if learnt is None else learnt.familiarity,
    )
    if run.processes.is_main:
        checkpoint.save(run.folder.model)
    part = "validation" if measured.split == "val" else measured.split
    items = images.data.dataset.part(measured.split)
    sampled = ""
    if len(measured.indices) < len(items):
        sampled = f"{len(measured.indices):,} of {len(items):,} {part} images, so that the run ends in time"
        run.progress.say(f"measured on {sampled}; `vitrail evaluate` measures on all")
    return Finished(
        folder=run.folder,
        checkpoint=checkpoint,
        task=images.task,
        settings=planned.settings,
        plan=planned.plan,
        state=state,
        description=images.data.description,
        findings=images.data.findings,
        results=measured.results,
        part=part,
        items=[items[index] for index in measured.indices],
        sampled=sampled,
        root=images.data.dataset.root,
        learnt=learnt,
    )


def provenance(settings: Settings, images: TrainingImages, state: TrainState, measured: Measured) -> dict[str, Any]:
    """What the model file says about its training. `sample` lets `evaluate` recognise the training images."""
    return {
        "vitrail": __version__,
        "torch": torch.__version__,
        "holdout": images.data.holdout,
        "seed": settings.train.seed,
        "ignore": -1 if settings.data.ignore is None else settings.data.ignore,
        "sample": images.data.sample,
        "images": len(images.data.train),
        "steps": state.best_step or state.step,
        "measured_on": measured.split,
        "metrics": measured.results["metrics"],
        "task": images.task.state_dict(),
        **({} if images.distillation is None else {"distillation": images.distillation.record()}),
        **({} if images.pile is None else {"unlabelled": images.pile.description}),
    }
