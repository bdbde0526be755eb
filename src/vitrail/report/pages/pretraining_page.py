"""report.html of a run without labels: how good the embedding is, what it attends to, whether it went well."""

from __future__ import annotations

import os
import platform
from typing import Any

import torch

from vitrail import __version__
from vitrail.pretraining.attention_record import recorded_attention
from vitrail.pretraining.health import ENTROPY, PROTOTYPES, RANK, HealthScores
from vitrail.pretraining.pretraining_run import Pretrained
from vitrail.report.pages.rendering import made, render
from vitrail.report.sections.curves import curves, score_chart, speed_of
from vitrail.report.sections.finding_cards import finding_cards
from vitrail.training.run_log import clock
from vitrail.visuals.colours import enlarged, overlay, shown_picture
from vitrail.visuals.embedded import jpeg

SIDE = 160  # pixels of a picture on the page, at least
COLUMNS = 6  # steps whose attention is shown: the first, the last, and some between


def pretraining_page(run: Pretrained) -> str:
    """The run as HTML. Names of files are text, whatever they contain."""
    history, scores = run.folder.history(), HealthScores(run.labelled)
    metric = scores.main_metric
    validations = [row for row in history if "validation" in row]
    shown = curves(history, metric, scores)
    others = [score_chart(validations, name, scores) for name in (RANK, ENTROPY, PROTOTYPES) if name != metric]
    if shown is not None:
        shown["charts"] += [chart for chart in others if chart is not None]
    return render(
        "pretraining.html",
        name=run.folder.path.resolve().name,
        subtitle="Pretraining report: learnt without labels",
        title=scores.title_of(metric),
        meaning=scores.meaning_of(metric),
        value=scores.show(metric, run.metrics[metric]),
        images=f"{run.images:,}",
        labelled=run.labelled,
        concerns=run.concerns,
        tiles=_tiles(run, history),
        data=run.description,
        model=_model_words(run),
        reasons=run.plan.reasons,
        curves=shown,
        metrics=[
            {"title": scores.title_of(name), "meaning": scores.meaning_of(name), "value": scores.show(name, value)}
            for name, value in run.metrics.items()
        ],
        attention=_attention(run),
        folder=str(run.folder.path),
        findings=finding_cards(run.findings, run.root, examples=3, pictured=6),
        facts=_facts(run),
        made=f"{made()}.",
    )


def _tiles(run: Pretrained, history: list[dict[str, Any]]) -> list[tuple[str, str]]:
    scores = HealthScores(run.labelled)
    tiles = [(scores.show(name, value), scores.title_of(name)) for name, value in run.metrics.items()][1:]
    if history:
        tiles += [(f"{history[-1]['epoch']:.4g}", "epochs"), (clock(history[-1]["seconds"]), "of learning")]
    speed = speed_of(history)
    if speed is not None:
        tiles.append((f"{speed:,.0f}" if speed >= 10 else f"{speed:.2g}", "images a second"))
    return tiles


def _model_words(run: Pretrained) -> str:
    config = run.checkpoint.config
    parameters = sum(parameter.numel() for parameter in run.checkpoint.model.parameters())
    height, width = config.image_size
    patch = f"{config.patch_size[0]} x {config.patch_size[1]} px patches of {height} x {width} px"
    return f"{config.in_words()}, {patch}, {parameters:,} parameters"


def _facts(run: Pretrained) -> list[tuple[str, str]]:
    return [
        ("command", run.plan.command),
        ("started", run.plan.started),
        ("time", clock(run.state.seconds)),
        ("steps", f"{run.state.step:,} of {run.plan.steps:,}"),
        ("seed", str(run.settings.train.seed)),
        ("versions", f"vitrail {__version__}, torch {torch.__version__}, Python {platform.python_version()}"),
        ("machine", f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores"),
    ]


def _attention(run: Pretrained) -> dict[str, Any] | None:
    """The fixed pictures, and what was attended to in each at some steps."""
    recorded = recorded_attention(run.folder.path)
    if not recorded:
        return None
    every = list(recorded)
    places = sorted({round(i * (len(every) - 1) / max(1, COLUMNS - 1)) for i in range(COLUMNS)})
    steps = [every[place] for place in places]
    prep = run.checkpoint.preprocessing
    mean, std = (torch.tensor(values).view(1, -1, 1, 1) for values in (prep.mean, prep.std))
    pictures = ((run.fixed * std + mean).clamp(0, 1) * 255).round().byte().permute(0, 2, 3, 1).numpy()
    rows = []
    for number, picture in enumerate(pictures):
        large = enlarged(picture, SIDE)
        rows.append([jpeg(overlay(large, recorded[step][number])) for step in steps])
    return {
        "steps": [f"step {step:,}" for step in steps],
        "rows": [
            {"picture": jpeg(shown_picture(enlarged(picture, SIDE))), "maps": maps}
            for picture, maps in zip(pictures, rows, strict=True)
        ],
    }
