"""The command `vitrail train`: train, measure, and leave a report behind."""

from __future__ import annotations

import json
import os
import platform
import signal
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from vitrail import __version__
from vitrail.data.truths import dense_truths
from vitrail.errors import VitrailError
from vitrail.files import write_text
from vitrail.infer.predictor import Predictor
from vitrail.report.run_page import RunRecord, page
from vitrail.report.samples import write_samples
from vitrail.training.finish import Finished
from vitrail.training.loop import Stopped
from vitrail.training.progress import clock
from vitrail.training.run import train as run
from vitrail.training.settings import Settings


def train(
    data: str | Path,
    out: str | Path,
    *,
    model: str | None = None,
    start: str | Path | None = None,
    epochs: float | None = None,
    minutes: float | None = None,
    image_size: int | None = None,
    batch_size: int | None = None,
    lr: float | None = None,
    seed: int | None = None,
    layout: str | None = None,
    task: str | None = None,
    settings: Settings | str | Path | None = None,
    resume: bool = False,
    shard: bool = False,
) -> Finished:
    """Train on the images of DATA into the folder OUT; what is not given is chosen, or stands in `settings`."""
    asked = {
        "model.model": model,
        "model.start": None if start is None else str(start),
        "train.epochs": epochs,
        "train.minutes": minutes,
        "model.image_size": image_size,
        "train.batch_size": batch_size,
        "train.lr": lr,
        "train.seed": seed,
        "data.layout": layout,
        "data.task": task,
    }
    given = {name: value for name, value in asked.items() if value is not None}
    if resume and (given or settings is not None):
        named = ", ".join([*given, *(["--settings"] if settings is not None else [])])
        raise VitrailError(f"a resumed run keeps its settings, so leave out {named}, or start a new run")
    if settings is None:
        settings = Settings()
    elif not isinstance(settings, Settings):
        settings = Settings.read(settings)
    finished = run(data, out, settings.with_values(given), resume=resume, shard=shard)
    if int(os.environ.get("RANK", "0")) == 0:
        write_text(finished.folder.results, json.dumps(finished.results, indent=2) + "\n")
        write_text(finished.folder.report, page(record(finished)))
        write_samples(finished.items, finished.task.labels, finished.folder.samples)
    return finished


def run_train(**asked: Any) -> int:
    """`train` for the command line: prints the end, and gives the exit code."""
    try:
        finished = train(**asked)
    except Stopped as stopped:
        return 128 + stopped.signal_number if stopped.signal_number else 128 + signal.SIGTERM
    if int(os.environ.get("RANK", "0")) == 0:
        for line in summary(finished):
            print(line)
    return 0


def summary(finished: Finished) -> list[str]:
    results, task = finished.results, finished.task
    metric = results["main_metric"]
    value = task.show(metric, results["metrics"][metric])
    low, high = (task.show(metric, bound) for bound in results["intervals"][metric])
    where = f"{results['images']:,} {finished.part} images"
    spent = clock(finished.standing.seconds)
    return [
        f"{metric} {value} (95 % interval {low} to {high}) on {where}, after {spent} of training",
        f"model:  {finished.folder.model}",
        f"report: {finished.folder.report}",
    ]


def record(finished: Finished) -> RunRecord:
    config, plan = finished.checkpoint.config, finished.plan
    parameters = sum(p.numel() for p in finished.checkpoint.model.parameters())
    facts = [
        ("command", plan.command),
        ("started", plan.started),
        ("time", clock(finished.standing.seconds)),
        ("steps", f"{finished.standing.step:,} of {plan.steps:,}, the best after {finished.standing.best_step:,}"),
        ("seed", str(finished.settings.train.seed)),
        ("versions", f"vitrail {__version__}, torch {torch.__version__}, Python {platform.python_version()}"),
        ("machine", f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores"),
    ]
    return RunRecord(
        name=finished.folder.path.resolve().name,
        data=finished.description,
        model=(
            f"width {config.width}, depth {config.depth}, {config.heads} heads, {config.stem} stem, "
            f"{config.patch_size[0]} x {config.patch_size[1]} px patches of {config.image_size[0]} x "
            f"{config.image_size[1]} px, {parameters:,} parameters"
        ),
        reasons=plan.reasons,
        part=finished.part,
        results=finished.results,
        files=[item.path for item in finished.items],
        root=finished.root,
        history=finished.folder.history(),
        findings=finished.findings,
        facts=facts,
        show=finished.task.show,
        seen=_worst_seen(finished),
    )


def _worst_seen(finished: Finished) -> list[tuple[Tensor, Tensor]]:
    """Of the worst images the answer and the truth, which are too large to be kept for all."""
    if not finished.task.dense:
        return []
    items = [finished.items[one["index"]] for one in finished.results["worst"]]
    truths = dense_truths(items, (1, 1), 0.0, finished.settings.data.workers)
    outputs = Predictor(finished.checkpoint).outputs(item.path for item in items)
    return [(out, truths.own(place)) for place, (_, out) in enumerate(outputs) if isinstance(out, Tensor)]
