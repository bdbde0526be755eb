"""What the report of a run shows, from the run that has finished."""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from vitrail import __version__
from vitrail.inference.evaluation import MEASURED_IN
from vitrail.inference.predictor import Predictor
from vitrail.report.pages.run_page import RunRecord
from vitrail.report.sections.familiarity_section import familiarity_section
from vitrail.report.sections.label_errors_section import label_findings
from vitrail.tasks.dense_task import DenseTask
from vitrail.training.run_log import clock
from vitrail.training.stages.finish_run import Finished


def record(finished: Finished) -> RunRecord:
    config, plan = finished.checkpoint.config, finished.plan
    parameters = sum(p.numel() for p in finished.checkpoint.model.parameters())
    facts = [
        ("command", plan.command),
        ("started", plan.started),
        ("time", clock(finished.state.seconds)),
        ("steps", f"{finished.state.step:,} of {plan.steps:,}; the model is that of step {finished.state.best_step:,}"),
        ("seed", str(finished.settings.train.seed)),
        ("versions", f"vitrail {__version__}, torch {torch.__version__}, Python {platform.python_version()}"),
        ("machine", f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores"),
    ]
    if taught := finished.checkpoint.provenance["training"].get("distillation"):
        facts.append(("teacher", teacher_words(taught)))
    if pile := finished.checkpoint.provenance["training"].get("unlabelled"):
        by = "the teacher's answers" if taught else "hidden patches that were painted"
        facts.append(("without labels", f"{pile}, learnt by {by}"))
    if finished.sampled:
        facts.append(("measured on", finished.sampled))
    return RunRecord(
        name=finished.folder.path.resolve().name,
        data=finished.description,
        model=(
            f"{config.in_words()}, "
            f"{config.patch_size[0]} x {config.patch_size[1]} px patches of {config.image_size[0]} x "
            f"{config.image_size[1]} px, {parameters:,} parameters"
        ),
        reasons=plan.reasons,
        part=finished.part,
        results=finished.results,
        files=[item.path for item in finished.items],
        stored=[item.stored for item in finished.items],
        root=finished.root,
        history=finished.folder.history(),
        findings=finished.findings,
        label_findings=label_findings(finished.learnt, finished.task),
        familiarity=familiarity_section(finished.learnt, finished.root),
        facts=facts,
        task=finished.task,
        worst=_worst_seen(finished),
    )


def teacher_words(taught: Mapping[str, Any]) -> str:
    """Who taught, and what was learnt of it."""
    what = "the class that it gives" if taught["distillation"] == "hard" else "its answers"
    what += "" if taught["temperature"] == 1 else f" at temperature {taught['temperature']:g}"
    weight, fingerprint = taught["weight"], taught["fingerprint"]
    return f"{taught['teacher']}: {what}, {weight:.0%} of the loss; its weights have the fingerprint {fingerprint}"


def _worst_seen(finished: Finished) -> list[tuple[Tensor, Tensor]]:
    """Answer and truth of the worst images only: they are too large to be kept for all images."""
    task = finished.task
    if not isinstance(task, DenseTask):
        return []
    items = [finished.items[row["index"]] for row in finished.results["worst"]]
    targets = task.targets(items, (1, 1), 0.0, finished.settings.data.workers)
    predictor = Predictor(finished.checkpoint, precision=MEASURED_IN)  # the answers that were measured
    outputs = predictor.outputs(item.source for item in items)
    return [(output, targets.own(index)) for index, (_, output) in enumerate(outputs) if isinstance(output, Tensor)]
