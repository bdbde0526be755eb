"""A set of images with what is to be learnt from each: the one object that every layout becomes.

Nothing here knows a task. What a target means, in which words a dataset is described and what is wrong with it, its
task says (`vitrail.tasks.task_data`).
"""

from __future__ import annotations

import dataclasses
import functools
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeAlias

from vitrail.findings import Finding

SPLITS = ("train", "val", "test")
_SPLIT_NAMES = {
    **dict.fromkeys(("train", "training"), "train"),
    **dict.fromkeys(("val", "valid", "validation", "dev"), "val"),
    **dict.fromkeys(("test", "testing"), "test"),
}


def split_name(text: str) -> str | None:
    """train, val or test for any usual way of writing it."""
    return _SPLIT_NAMES.get(text.strip().casefold())


class StructuredTarget:
    """A target that is more than a class or some numbers: boxes, or a value for every pixel. It can be compared and
    hashed, and `str()` tells it apart from others on every machine: a run's fingerprint is made from it."""

    __slots__ = ()

    def classes_present(self) -> tuple[int, ...]:
        """The class of each thing that is learnt and counted; none where nobody knows before the target is read."""
        return ()


# A class, the classes that an image has, the numbers to predict, or what a task makes of its files.
Target: TypeAlias = int | tuple[int, ...] | tuple[float, ...] | StructuredTarget


@dataclass(frozen=True, slots=True)
class Item:
    """One image and its target. split None: none was given."""

    path: Path
    target: Target
    split: str | None = None
    group: str | None = None  # images of one group stay on one side of a split

    def classes(self) -> tuple[int, ...]:
        """The classes of its target, for counting; none for numbers."""
        if isinstance(self.target, int):
            return (self.target,)
        if isinstance(self.target, StructuredTarget):
            return self.target.classes_present()
        return tuple(value for value in self.target if isinstance(value, int))


@dataclass(frozen=True)
class Dataset:
    """A set of images with their targets, read but not decoded."""

    root: Path  # what paths are shown relative to
    layout: str  # how it lies on disk
    task: str  # the name of the task that it is for
    labels: tuple[str, ...]  # class names in order, or the names of the numbers
    items: tuple[Item, ...] = field(repr=False)
    findings: tuple[Finding, ...] = field(default=(), repr=False)  # what was noticed while it was read
    table: Path | None = None

    @property
    def has_validation(self) -> bool:
        """Whether some of its images are a validation part already."""
        return any(item.split == "val" for item in self.items)

    @property
    def usual_holdout(self) -> float:
        """The part of train that is held out where there is no validation part. With a test part it does not measure
        the model, it only chooses among its weights."""
        return 0.1 if any(item.split == "test" for item in self.items) else 0.2

    def part(self, split: str) -> tuple[Item, ...]:
        """The items of train, val or test; those without a part count as train."""
        return self._parts.get(split, ())

    @functools.cached_property
    def _parts(self) -> dict[str, tuple[Item, ...]]:
        """Found once: callers ask for each image, and of 60,000 images looking for them again took minutes."""
        parts: dict[str, list[Item]] = {}
        for item in self.items:
            parts.setdefault(item.split or "train", []).append(item)
        return {split: tuple(items) for split, items in parts.items()}

    def class_counts(self, split: str | None = None) -> list[int]:
        """Images of each class, in the order of `labels`; boxes of each class where there are boxes."""
        items = self.items if split is None else self.part(split)
        counts = Counter(label for item in items for label in item.classes())
        return [counts[number] for number in range(len(self.labels))]

    def replace(self, **changes: object) -> Dataset:
        """A copy with some fields changed."""
        return dataclasses.replace(self, **changes)  # type: ignore[arg-type]
