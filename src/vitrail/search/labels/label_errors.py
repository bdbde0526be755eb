"""Labels that are probably wrong, the most suspicious first, each with the label that fits better."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from vitrail.dataset import Item
from vitrail.errors import VitrailError
from vitrail.findings import Example, Finding
from vitrail.search.labels.confident_learning import Labels, Probabilities, confident_joint, label_quality
from vitrail.tasks.registry import task_class
from vitrail.text import counted, shown

FEWEST = 10  # images: of fewer nothing can be said
TOO_MANY = 0.2  # of the images: if more seem wrong, it is rather the vectors that do not tell the classes apart


@dataclass(frozen=True)
class LabelError:
    """One label of one image, and what the images like it say."""

    item: Item
    given: str  # the class it is labelled with; of several labels, the one in question
    better: str  # the class that fits better; of several labels, "with" or "without" the one in question
    quality: float  # from 0 to 1: the label's probability, by the other images
    likely: bool  # whether confident learning counts it as an error

    def words(self) -> str:
        """'labelled rose (0.04), tulip fits better'."""
        if self.better in (WITH, WITHOUT):
            return f"fits better {self.better} the label {self.given} ({self.quality:.2f} as it is)"
        return f"labelled {self.given} ({self.quality:.2f}), {self.better} fits better"

    def to_dict(self, root: Path) -> dict[str, Any]:
        """As JSON and CSV have it."""
        return {
            "image": shown(self.item.path, root),
            "label": self.given,
            "better": self.better,
            "quality": round(self.quality, 4),
            "likely": self.likely,
        }


WITH, WITHOUT = "with", "without"


def check_labelled(task: str) -> None:
    """Refuse tasks whose targets are no labels of whole images."""
    kind = task_class(task)
    if not kind.classifies_images:
        raise VitrailError(
            f"label errors are found among classes and labels of whole images, and this data is for {kind.title}: "
            "leave out --model"
        )


def class_errors(items: Sequence[Item], labels: Sequence[str], probabilities: Probabilities) -> list[LabelError]:
    """Of images with one class each, the worst first. probabilities: (N, K), out of fold."""
    given = np.array([item.target for item in items], dtype=np.int64)
    confident, quality = confident_joint(given, probabilities), label_quality(given, probabilities)
    likely = confident.errors
    others = np.array(probabilities)
    others[np.arange(len(given)), given] = -1
    better = np.where(likely, confident.counted, others.argmax(axis=1))
    order = np.argsort(quality, kind="stable")
    return [
        LabelError(items[i], labels[given[i]], labels[better[i]], float(quality[i]), bool(likely[i])) for i in order
    ]


def several_label_errors(
    items: Sequence[Item], labels: Sequence[str], probabilities: Probabilities
) -> list[LabelError]:
    """Of images with any number of labels, label by label, the worst first: too few and too many."""
    given = np.zeros(probabilities.shape, dtype=np.int64)
    for row, item in zip(given, items, strict=True):
        row[list(item.classes())] = 1
    found = []
    for place, label in enumerate(labels):
        has: Labels = given[:, place]
        pair = np.stack([1 - probabilities[:, place], probabilities[:, place]], axis=1)
        likely, quality = confident_joint(has, pair).errors, label_quality(has, pair)
        found += [
            LabelError(items[i], label, WITHOUT if has[i] else WITH, float(quality[i]), bool(likely[i]))
            for i in range(len(items))
            if likely[i]  # of all pairs of an image and a label there are too many
        ]
    return sorted(found, key=lambda error: error.quality)


def label_errors(
    task: str, items: Sequence[Item], labels: Sequence[str], probabilities: Probabilities
) -> list[LabelError]:
    """With one class each all images are listed; with several labels the likely errors alone."""
    check_labelled(task)
    find = class_errors if task_class(task).one_class_each else several_label_errors
    return find(items, labels, probabilities)


def finding_of(errors: Sequence[LabelError], images: int, model: str, limits: str = "") -> list[Finding]:
    """The likely errors of so many images as `check` and the report show them. limits: what is to be known besides."""
    likely = [error for error in errors if error.likely]
    if not likely:
        return []
    title = f"{counted(len(likely), 'label')} may be wrong: the images that are most like them to {model} say otherwise"
    advice = "look at each, the most suspicious first; some are right and only unusual"
    if is_no_witness(errors, images):
        advice += "; so many speak rather against the model, so take a stronger one"
    examples = tuple(Example((error.item.path,), error.words()) for error in likely)
    return [Finding("label-errors", "warning", title, advice + limits, len(likely), examples)]


def is_no_witness(errors: Sequence[LabelError], images: int) -> bool:
    """Whether so many of the images seem to be labelled wrongly that the model, and not they, is at fault."""
    return len({error.item.path for error in errors if error.likely}) > TOO_MANY * images
