"""After the last step: the best weights as a plain model, and what is known about how it came to be."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from vitrail import __version__
from vitrail.data.collection import Item
from vitrail.data.findings import Finding
from vitrail.model.vit import ViT
from vitrail.tasks.task import Task
from vitrail.training.building import fresh_model
from vitrail.training.folder import RunFolder
from vitrail.training.loop import Loop, Standing
from vitrail.training.lora import merge_low_rank
from vitrail.training.plan import Plan
from vitrail.training.prepare import Prepared
from vitrail.training.settings import Settings
from vitrail.training.state import Saved, States, collect_tensors, restore_tensors
from vitrail.weights.checkpoint import Checkpoint


@dataclass(frozen=True, kw_only=True)
class Finished:
    """A run at its end, with all that its report tells."""

    folder: RunFolder
    checkpoint: Checkpoint
    task: Task
    settings: Settings
    plan: Plan
    standing: Standing
    description: str
    findings: Sequence[Finding]
    results: dict[str, Any]
    part: str
    items: Sequence[Item]  # of that part
    root: Path


def best_model(loop: Loop, states: States, start: Checkpoint, settings: Settings) -> ViT:
    """The best weights of the run in a plain model, whatever it was trained with."""
    best = loop.processes.from_main(states.load_best)  # which writes it: another might read it too early
    tensors = best.tensors if isinstance(best, Saved) else collect_tensors(loop.model, (), None)
    model = fresh_model(start, settings, loop.processes.device)
    restore_tensors(tensors, model, (), None)
    merge_low_rank(model)
    return model.eval().requires_grad_(True)


def provenance(
    settings: Settings, prepared: Prepared, standing: Standing, task: Task, results: dict[str, Any], part: str
) -> dict[str, Any]:
    """What the model file says about its training. `sample` lets `evaluate` know the training images again."""
    return {
        "vitrail": __version__,
        "torch": torch.__version__,
        "holdout": prepared.holdout,
        "seed": settings.train.seed,
        "ignore": settings.data.ignore,
        "sample": prepared.sample,
        "images": len(prepared.train),
        "steps": standing.best_step or standing.step,
        "measured_on": part,
        "metrics": results["metrics"],
        "task": task.state_dict(),
    }
