"""report.html, the page that a training run leaves behind: how good the model is, where it fails, how it was made."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from vitrail.findings import SEVERITIES, Finding
from vitrail.images.stored_image import StoredImage
from vitrail.report.pages.rendering import made, render
from vitrail.report.sections.curves import curves, kept_of, kept_word, speed_of
from vitrail.report.sections.finding_cards import finding_cards
from vitrail.report.sections.headline import headline
from vitrail.tasks.report_part import MeasuredImages
from vitrail.tasks.shared.metric_words import interval_text
from vitrail.tasks.task import Task
from vitrail.text import counted
from vitrail.training.run_log import clock

EXAMPLES = 3  # of each finding: the page of `vitrail check` shows more
PICTURED = 6  # findings with pictures, the gravest


@dataclass(frozen=True, kw_only=True)
class RunRecord:
    """What a run has to tell."""

    name: str  # the run folder's
    data: str  # one line: what it was trained on
    model: str  # one line: what was trained
    reasons: Sequence[str]  # why it was trained like this
    part: str  # "validation" or "test": what `results` measured
    results: Mapping[str, Any]  # Task.evaluate of the finished model
    files: Sequence[Path]  # the measured images, to which results["worst"][i]["index"] points
    root: Path  # file names are shown relative to it
    history: Sequence[Mapping[str, Any]]  # rows of metrics.jsonl
    findings: Sequence[Finding]  # of the data check
    facts: Sequence[tuple[str, str]]  # label and value: command, versions, machine, seed
    task: Task
    worst: Sequence[tuple[Tensor, Tensor]] = ()  # of a dense task (see MeasuredImages)
    stored: Sequence[StoredImage | None] = ()  # of each file where it lies, if it is none (see MeasuredImages)
    label_findings: Sequence[Finding] = ()  # labels that are probably wrong
    familiarity: Mapping[str, Any] | None = None  # what `familiarity_section` gives

    def show(self, metric: str, value: float) -> str:
        """A metric's value as people read it."""
        return self.task.show(metric, value)


def page(record: RunRecord) -> str:
    """The record as HTML. Names of files and classes are text, whatever they contain."""
    results, task = record.results, record.task
    task_part = task.report(results, MeasuredImages(record.files, record.root, record.worst, record.stored))
    return render(
        "run.html",
        name=record.name,
        subtitle=f"Training report: {task.title}",
        record=record,
        headline=headline(results, record.part, task, copies_elsewhere(record.findings, record.files)),
        tiles=_tiles(record),
        findings_line=_findings_line(record.findings),
        curves=curves(record.history, results["main_metric"], task),
        metrics=_metric_rows(results, task),
        task_part=task_part,
        part=task_part.values,
        label_errors=finding_cards(record.label_findings, record.root, examples=EXAMPLES),
        findings=finding_cards(record.findings, record.root, examples=EXAMPLES, pictured=PICTURED),
        made=f"{made()}.",
    )


def copies_elsewhere(findings: Sequence[Finding], files: Sequence[Path]) -> int:
    """How many of these files have a copy, or an image that looks the same, in another part of the data."""
    crossing = [finding for finding in findings if finding.kind.endswith("-across-parts")]
    known = {file for finding in crossing for example in finding.examples for file in example.files}
    return sum(file in known for file in files)


def _metric_rows(results: Mapping[str, Any], task: Task) -> list[dict[str, str]]:
    """All metrics of an evaluation, each with its interval."""
    return [
        {
            "title": task.title_of(name),
            "meaning": task.meaning_of(name),
            "value": task.show(name, value),
            "interval": interval_text(name, results["intervals"], task.show),
        }
        for name, value in results["metrics"].items()
    ]


def _tiles(record: RunRecord) -> list[tuple[str, str]]:
    """Numbers that matter at first sight; what is not known has no tile."""
    results, history = record.results, record.history
    tiles = [(f"{results['images']:,}", f"{record.part} {'image' if results['images'] == 1 else 'images'}")]
    tiles += record.task.report_tiles(results)
    kept = kept_of(history)
    if history:
        tiles.append((f"{history[-1]['epoch']:.4g}", "epochs trained"))
    if kept is not None:
        tiles.append((f"{kept['epoch']:.4g}", f"{kept_word(kept)} epoch"))
    if history:
        tiles.append((clock(history[-1]["seconds"]), "of training"))
    speed = speed_of(history)
    if speed is not None:
        tiles.append((f"{speed:,.0f}" if speed >= 10 else f"{speed:.2g}", "images a second"))
    return tiles


def _findings_line(findings: Sequence[Finding]) -> str:
    counts = {severity: sum(finding.severity == severity for finding in findings) for severity in SEVERITIES}
    return ", ".join(counted(count, severity) for severity, count in counts.items() if count)
