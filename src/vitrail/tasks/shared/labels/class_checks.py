"""What is wrong or odd with the number of images, or of boxes, that each class has."""

from __future__ import annotations

from dataclasses import dataclass

from vitrail.dataset import SPLITS, Dataset
from vitrail.findings import Finding, single
from vitrail.text import counted, listing

FEW = 10  # images of a class below which neither learning nor measuring it means much
UNEQUAL = 10  # times as many images in the largest class as in the smallest


@dataclass(frozen=True)
class Counted:
    """What is counted of each class, and what to do where the numbers are unequal."""

    one: str = "image"
    many: str = "images"
    balance: str = (
        "balance the classes in training, and judge by balanced accuracy: always saying the largest scores well"
    )


def check_class_counts(dataset: Dataset, automatic: bool, what: Counted) -> list[Finding]:
    """`dataset` with every item in a part, by the user or `automatic`."""
    counts = dataset.class_counts("train")
    if automatic:  # what chance puts aside of a small class is nobody's fault
        counts = [a + b for a, b in zip(counts, dataset.class_counts("val"), strict=True)]
    findings = [_few(dataset, counts, what), _unequal(dataset, counts, what), _not_measured(dataset, what)]
    return [finding for finding in findings if finding is not None]


def untaught_classes(dataset: Dataset) -> list[Finding]:
    """Classes without a training image, each of which makes a score meaningless."""
    counts = dataset.class_counts("train")
    missing = [number for number in range(len(dataset.labels)) if not counts[number]]
    if not missing:
        return []
    names = [dataset.labels[number] for number in missing]
    files = [item.path for item in dataset.items if set(item.classes()) & set(missing)]
    title = f"{counted(len(names), 'class has', 'classes have')} no training image: {listing(names, 5)}"
    advice = "add images of it to train, or remove it from the other parts: it cannot be learnt"
    return [Finding("class-not-in-train", "error", title, advice, len(names), single(files))]


def counts_by_part(dataset: Dataset) -> dict[str, list[dict[str, object]]]:
    """Of each class what it has in each part, for `vitrail check --json`."""
    counts = {split: dataset.class_counts(split) for split in SPLITS}
    rows = [{"name": name, **{split: counts[split][n] for split in SPLITS}} for n, name in enumerate(dataset.labels)]
    return {"classes": rows}


def _few(dataset: Dataset, counts: list[int], what: Counted) -> Finding | None:
    few = [number for number, count in enumerate(counts) if 0 < count < FEW]
    if not few:
        return None
    names = listing([f"{dataset.labels[number]} ({counts[number]})" for number in few], 5)
    title = f"{counted(len(few), 'class has', 'classes have')} fewer than {FEW} {what.many} to learn from: {names}"
    return Finding("few-images", "warning", title, f"add {what.many}, or join it with a class like it", len(few))


def _unequal(dataset: Dataset, counts: list[int], what: Counted) -> Finding | None:
    present = [number for number, count in enumerate(counts) if count]
    if len(present) < 2:
        return None
    large, small = max(present, key=counts.__getitem__), min(present, key=counts.__getitem__)
    ratio = counts[large] / counts[small]
    if ratio < UNEQUAL:
        return None
    names = f"{dataset.labels[large]} {counts[large]:,}, {dataset.labels[small]} {counts[small]:,}"
    title = f"the largest class has {ratio:,.0f} times as many {what.many} as the smallest ({names})"
    return Finding("unequal-classes", "warning", title, what.balance, len(present))


def _not_measured(dataset: Dataset, what: Counted) -> Finding | None:
    val, train = dataset.class_counts("val"), dataset.class_counts("train")
    absent = [name for name, held, learnt in zip(dataset.labels, val, train, strict=True) if learnt and not held]
    if not absent or not any(val):
        return None
    title = f"{counted(len(absent), 'class has', 'classes have')} no validation {what.one}: {listing(absent, 5)}"
    advice = "add images of it to val: what is not measured may be wrong unnoticed"
    return Finding("class-not-in-val", "warning", title, advice, len(absent))
