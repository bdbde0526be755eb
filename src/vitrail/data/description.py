"""A dataset in words, and whether anything can be learnt from it: its task says most of it."""

from __future__ import annotations

from vitrail.dataset import SPLITS, Dataset
from vitrail.errors import VitrailError
from vitrail.findings import Finding
from vitrail.tasks.registry import task_data
from vitrail.text import joined, shown

TITLES = {
    "folders": "folders",
    "split-folders": "folders by part",
    "coco": "COCO",
    "voc": "Pascal VOC",
    "yolo": "YOLO",
    "manifest": "manifest",
}


def describe(dataset: Dataset, fraction: float | None = None) -> str:
    """The one line that says what was read and how it was taken."""
    parts = dataset.is_divided
    text = f"{task_data(dataset.task).describe(dataset)} ({_layout_title(dataset, parts)})"
    if parts:
        text += ": " + ", ".join(f"{split} {n:,}" for split in SPLITS if (n := len(dataset.part(split))))
    if dataset.has_validation:
        return text
    of = " of train" if parts else ""
    return f"{text}, no validation part: {100 * (fraction or dataset.usual_holdout):.3g} %{of} will be held out"


def obstacles(dataset: Dataset) -> list[Finding]:
    """What makes training impossible, or its score meaningless."""
    if not dataset.part("train"):
        parts = joined([split for split in SPLITS if dataset.part(split)])
        advice = "add a train part, or name the folder itself to use all of it"
        return [Finding("no-train-part", "error", f"there is no train part, only {parts}", advice, len(dataset.items))]
    return task_data(dataset.task).obstacles(dataset)


def trainable(dataset: Dataset) -> Dataset:
    """The dataset itself, or the one sentence that says why nothing can be learnt from it."""
    for finding in obstacles(dataset):
        raise VitrailError(f"{shown(dataset.address)}: {finding.title}; {finding.advice}")
    return dataset


def _layout_title(dataset: Dataset, parts: bool) -> str:
    data = task_data(dataset.task)
    if dataset.layout == data.own_layout:
        return f"{data.own_layout_title}{' by part' if parts else ''}"
    return TITLES.get(dataset.layout) or shown(dataset.table.name if dataset.table else "table")
