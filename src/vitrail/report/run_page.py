"""report.html, the page that a training run leaves behind: how good the model is, where it fails, how it was made."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from vitrail.data.findings import SEVERITIES, Finding
from vitrail.data.names import counted
from vitrail.report.box_cards import box_gallery, box_section
from vitrail.report.confusion import PAIRS, confused_pairs, confusion_table
from vitrail.report.curves import best_of, curves, speed_of
from vitrail.report.finding_cards import finding_cards
from vitrail.report.headline import headline
from vitrail.report.label_table import label_table
from vitrail.report.mask_cards import mask_gallery, mask_section
from vitrail.report.metric_words import metric_rows
from vitrail.report.mistakes import mistakes
from vitrail.report.numbers import number_cards
from vitrail.report.pages import made, render
from vitrail.report.reliability import reliability_section
from vitrail.training.progress import clock

EXAMPLES = 3  # of each finding: the page of `vitrail check` shows more
PICTURED = 6  # findings with pictures, the gravest
_TASKS = {
    "classify": "classification",
    "multilabel": "multi-label classification",
    "regress": "regression",
    "segment": "segmentation",
    "detect": "detection",
}


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
    show: Callable[[str, float], str]  # Task.show: a metric's value as people read it
    seen: Sequence[
        tuple[Tensor, Tensor]
    ] = ()  # answers about places: of each in results["worst"] the answer and the truth


def page(record: RunRecord) -> str:
    """The record as HTML. Names of files and classes are text, whatever they contain."""
    results = record.results
    numbers = number_cards(results, record.files, record.root, record.show)
    pairs = confused_pairs(results)
    places = _places(record)
    return render(
        "run.html",
        name=record.name,
        subtitle=f"Training report: {_TASKS[results['task']]}",
        record=record,
        headline=headline(results, record.part, record.show),
        tiles=_tiles(record),
        findings_line=_findings_line(record.findings),
        curves=curves(record.history, results["main_metric"], record.show),
        metrics=metric_rows(results, record.show),
        numbers=numbers,
        masks=places.get("segment"),
        boxes=places.get("detect"),
        confusion=None if places else confusion_table(results),
        pairs=([], []) if places else (pairs[:PAIRS], pairs[PAIRS:]),
        labels=None if numbers or places else label_table(results["per_label"]),
        calibration=reliability_section(results),
        mistakes=[] if numbers or places else mistakes(results["worst"], record.files, record.root),
        findings=finding_cards(record.findings, record.root, examples=EXAMPLES, pictured=PICTURED),
        made=f"{made()}.",
    )


def _places(record: RunRecord) -> dict[str, Any]:
    """The section of a task that answers about places, by the task's name."""
    results, task = record.results, record.results["task"]
    if task not in ("segment", "detect"):
        return {}
    decoded, truths = [one for one, _ in record.seen], [one for _, one in record.seen]
    labels = [row["label"] for row in results["per_label"]]
    if task == "segment":
        pictures = mask_gallery(results["worst"], record.files, decoded, truths, labels, record.root)
        return {task: mask_section(results, pictures)}
    pictures = box_gallery(results, record.files, decoded, truths, labels, record.root)
    return {task: box_section(results, pictures)}


def _tiles(record: RunRecord) -> list[tuple[str, str]]:
    """Numbers that matter at first sight; what is not known has no tile."""
    results, history = record.results, record.history
    tiles = [(f"{results['images']:,}", f"{record.part} {'image' if results['images'] == 1 else 'images'}")]
    right = {"classify": "accuracy", "multilabel": "exact_match"}.get(results["task"])
    if right:
        wrong = round(results["images"] * (1 - results["metrics"][right]))
        tiles.append((f"{wrong:,}", "with a mistake" if results["task"] == "multilabel" else "answered wrong"))
    best = best_of(history)
    if history:
        tiles.append((f"{history[-1]['epoch']:.4g}", "epochs trained"))
    if best is not None:
        tiles.append((f"{best['epoch']:.4g}", "best epoch"))
    if history:
        tiles.append((clock(history[-1]["seconds"]), "of training"))
    speed = speed_of(history)
    if speed is not None:
        tiles.append((f"{speed:,.0f}" if speed >= 10 else f"{speed:.2g}", "images a second"))
    return tiles


def _findings_line(findings: Sequence[Finding]) -> str:
    counts = {severity: sum(finding.severity == severity for finding in findings) for severity in SEVERITIES}
    return ", ".join(counted(count, severity) for severity, count in counts.items() if count)
