"""What the labels of a task are on disk: how they are read, described, checked and drawn for `vitrail check`.

This is the half of a task that `vitrail check` needs, so nothing here waits for torch. The other half, which learns and
answers, is `vitrail.tasks.task.Task`. Both are found through `vitrail.tasks.registry`.

`data/layouts` parses a structure (folders of images, the columns of a table, annotated objects) and asks the task to
turn it into targets. A structure that only one task has, such as images and masks in two folders, the task reads
itself.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from vitrail.annotations import AnnotationSource
from vitrail.dataset import Dataset, Item, Target
from vitrail.findings import Finding
from vitrail.images.decode import ImageFacts
from vitrail.images.unreadable import UnreadableImage
from vitrail.tasks.dense_options import DenseOptions
from vitrail.tasks.shared.columns import Table
from vitrail.tasks.shared.scene import Scene


@dataclass(frozen=True)
class TargetLook:
    """What was seen in the target of one item when it was read. A task adds what its checks count."""

    problem: UnreadableImage | None = None  # why nothing can be learnt from it


@dataclass(frozen=True)
class ExaminedItems:
    """What a check knows of the items of a dataset, in their order."""

    facts: Sequence[ImageFacts | None]  # of the images; None where one cannot be read. Empty: there are too many
    looks: Sequence[TargetLook | None]  # of the targets; empty after a fast check
    automatic_split: bool  # whether the split was made by us, not by the user


@dataclass(frozen=True)
class TableTargets:
    labels: tuple[str, ...]  # class names in order, or the names of the numbers
    values: list[Any]  # a target for each row
    findings: list[Finding] = field(default_factory=list)


class TaskData:
    """The data of one task. A task overrides what it can do; `layouts` says which of the readers it has."""

    name: ClassVar[str]
    layouts: ClassVar[tuple[str, ...]]  # what it can be learnt from, preferred first
    own_layout: ClassVar[str] = ""  # one of these, which only this task reads (`find`, `read`)
    own_layout_title: ClassVar[str] = ""  # in words: "images and masks"
    looked_for: ClassVar[str] = ""  # what is looked for on disk, in words; "": class folders and tables
    label_noun: ClassVar[tuple[str, str]] = ("class", "classes")  # what `Dataset.labels` names
    target_noun: ClassVar[tuple[str, str]] = ("label", "labels")  # what one image has, and what several have
    advice_on_two_targets: ClassVar[str] = ""  # added where a table lists an image twice with different targets
    targets_vary: ClassVar[bool] = False  # whether images that look the same may well have different targets

    # ---- reading

    def targets_of_folders(self, folders: Sequence[Path]) -> tuple[tuple[str, ...], Mapping[Path, Target]]:
        """Labels, and the target of the images in each folder. `folders`: those with images in them."""
        raise NotImplementedError

    def reads_columns(self, columns: Collection[str], chosen: Sequence[str] | None) -> bool:
        """Whether a table with these columns is for this task, when nobody says which. `chosen`: the columns that the
        user named as targets."""
        return False

    def targets_of_table(self, table: Table, chosen: Sequence[str] | None) -> TableTargets:
        raise NotImplementedError

    def suits_annotations(self, source: AnnotationSource) -> bool:
        """Whether annotated objects are for this task, when nobody says which."""
        return False

    def from_annotations(self, source: AnnotationSource) -> Dataset:
        raise NotImplementedError

    def find(self, root: Path, options: DenseOptions) -> bool:
        """Whether a folder has the task's own layout."""
        return False

    def read(self, root: Path, options: DenseOptions) -> Dataset:
        """Read the task's own layout."""
        raise NotImplementedError

    # ---- words

    def describe(self, dataset: Dataset) -> str:
        """What the dataset holds, such as `120 images in 3 classes`."""
        raise NotImplementedError

    def target_words(self, item: Item, dataset: Dataset) -> str:
        """A target in a few words, to tell copies of an image apart; "" where words cannot."""
        return ""

    # ---- checks

    def obstacles(self, dataset: Dataset) -> list[Finding]:
        """What makes training impossible, or its score meaningless. The dataset has a train part."""
        return []

    def look(self, item: Item) -> TargetLook | None:
        """Read an item's target, in a thread of a full check; None where the target is known without reading."""
        return None

    def check(self, dataset: Dataset, examined: ExaminedItems) -> list[Finding]:
        """What is odd with the targets."""
        return []

    def summary(self, dataset: Dataset, looks: Sequence[TargetLook | None]) -> dict[str, Any]:
        """What `vitrail check --json` tells of the labels."""
        raise NotImplementedError

    def charts(self, dataset: Dataset, looks: Sequence[TargetLook | None]) -> list[dict[str, Any]]:
        """The charts of the check's page (`shared/check_charts.py` makes them)."""
        return []

    # ---- generated data (`vitrail make-data`)

    def scene_columns(self, scene: Scene) -> dict[str, Any]:
        """The truth of a generated scene as columns of table.csv."""
        return {}

    def write_scene(self, root: Path, part: str, stem: str, scene: Scene) -> Any:
        """Write the truth of the scene in images/PART/STEM.jpg as a file of its own; what it returns `write_scenes`
        gets."""
        return None

    def write_scenes(self, root: Path, scenes: Mapping[str, Sequence[tuple[str, Any]]], size: int) -> None:
        """Write the truth of all scenes. Of each part: the image's file name, and what `write_scene` returned."""
