"""A set of images with what is to be learnt from each: the one object that every layout becomes."""

from __future__ import annotations

import dataclasses
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from vitrail.data.boxes import Boxes
from vitrail.data.findings import Example, Finding, single
from vitrail.data.masks import Mask
from vitrail.data.names import counted, listing, shown
from vitrail.errors import VitrailError

SPLITS = ("train", "val", "test")
TASKS = ("classify", "multilabel", "regress", "segment", "detect")
_DIRECTLY = ("unknown-class-index",)  # findings of a layout that leave nothing to learn from
_SPLIT_NAMES = {
    **dict.fromkeys(("train", "training"), "train"),
    **dict.fromkeys(("val", "valid", "validation", "dev"), "val"),
    **dict.fromkeys(("test", "testing"), "test"),
}


def split_name(text: str) -> str | None:
    """train, val or test for any usual way of writing it."""
    return _SPLIT_NAMES.get(text.strip().casefold())


@dataclass(frozen=True, slots=True)
class Item:
    """One image. The target is a class, the classes it has, the numbers to predict, its boxes, or a class for every
    pixel; split None: none was given."""

    path: Path
    target: int | tuple[int, ...] | tuple[float, ...] | Boxes | Mask
    split: str | None = None
    group: str | None = None  # images of one group stay on one side of a split

    def classes(self) -> tuple[int, ...]:
        """The classes of a target that has some, for counting: of every box, none for numbers, and none for a mask,
        whose classes nobody knows before it is read."""
        if isinstance(self.target, int):
            return (self.target,)
        if isinstance(self.target, Boxes):
            return self.target.counted()
        if isinstance(self.target, Mask):
            return ()
        return tuple(value for value in self.target if isinstance(value, int))


@dataclass(frozen=True)
class Collection:
    root: Path  # what paths are shown relative to
    layout: str  # one of layouts.LAYOUTS
    task: str
    labels: tuple[str, ...]  # class names in order, or the names of the numbers
    items: tuple[Item, ...] = field(repr=False)
    findings: tuple[Finding, ...] = field(default=(), repr=False)  # what was noticed on the way
    table: Path | None = None

    @property
    def has_validation(self) -> bool:
        return any(item.split == "val" for item in self.items)

    @property
    def usual_holdout(self) -> float:
        """The part of train that is held out where there is no validation part. With a test part it does not measure
        the model, it only chooses among its weights."""
        return 0.1 if any(item.split == "test" for item in self.items) else 0.2

    def part(self, split: str) -> tuple[Item, ...]:
        """The items of train, val or test; those without a part count as train."""
        return tuple(item for item in self.items if (item.split or "train") == split)

    def class_counts(self, split: str | None = None) -> list[int]:
        """Images of each class, in the order of `labels`; boxes of each class where there are boxes."""
        items = self.items if split is None else self.part(split)
        found = Counter(label for item in items for label in item.classes())
        return [found[number] for number in range(len(self.labels))]

    def describe(self, fraction: float | None = None) -> str:
        """The one line that says what was found and how it was taken."""
        where, images = self._where(), counted(len(self.items), "image")
        classes = counted(len(self.labels), "class", "classes")
        if self.task == "classify":
            what = f"{images} in {classes} ({where})"
        elif self.task == "detect":
            what = f"{images} with {counted(sum(self.class_counts()), 'box', 'boxes')} of {classes} ({where})"
        elif self.task == "segment":
            what = f"{images} with masks of {classes} ({where})"
        elif self.task == "multilabel":
            what = f"{images} with {counted(len(self.labels), 'label')}, several on one image ({where})"
        else:
            what = f"{images} with {_listed(self.labels)} to predict ({where})"
        if any(item.split for item in self.items):
            what += ": " + ", ".join(f"{split} {n:,}" for split in SPLITS if (n := len(self.part(split))))
        if self.has_validation:
            return what
        of = " of train" if any(item.split for item in self.items) else ""
        return f"{what}, no validation part: {100 * (fraction or self.usual_holdout):.3g} %{of} will be held out"

    def _where(self) -> str:
        by_part = " by part" if any(item.split for item in self.items) else ""
        known = {
            "folders": "folders",
            "split-folders": "folders by part",
            "masks": f"images and masks{by_part}",
            "coco": "COCO",
            "voc": "Pascal VOC",
            "yolo": "YOLO",
        }
        return known.get(self.layout) or shown(self.table.name if self.table else "table")

    def replace(self, **changes: object) -> Collection:
        return dataclasses.replace(self, **changes)  # type: ignore[arg-type]

    def trainable(self) -> Collection:
        """Itself, or the one sentence that says why nothing can be learnt from it."""
        for finding in obstacles(self):
            raise VitrailError(f"{shown(self.table or self.root)}: {finding.title}; {finding.advice}")
        return self


def obstacles(collection: Collection) -> list[Finding]:
    """What makes training impossible, or its score meaningless."""
    train = collection.part("train")
    if not train:
        parts = _listed([split for split in SPLITS if collection.part(split)])
        advice = "add a train part, or name the folder itself to use all of it"
        return [
            Finding("no-train-part", "error", f"there is no train part, only {parts}", advice, len(collection.items))
        ]
    if collection.task == "regress":
        return _constant_targets(collection, train)
    if collection.task == "segment":
        return [finding for finding in collection.findings if finding.kind in _DIRECTLY][:1]
    if collection.task == "detect":
        return _no_boxes(collection)
    counts = collection.class_counts("train")
    present = [number for number, count in enumerate(counts) if count]
    if collection.task == "classify" and len(present) < 2 and len(collection.labels) < 2:
        return [_one_class(collection)]
    missing = [number for number in range(len(collection.labels)) if not counts[number]]
    if not missing:
        return []
    names = [collection.labels[number] for number in missing]
    files = [item.path for item in collection.items if set(item.classes()) & set(missing)]
    title = f"{counted(len(names), 'class has', 'classes have')} no training image: {listing(names, 5)}"
    advice = "add images of it to train, or remove it from the other parts: it cannot be learnt"
    return [Finding("class-not-in-train", "error", title, advice, len(names), single(files))]


# ---- parts


def _listed(names: tuple[str, ...] | list[str]) -> str:
    """`age`, `age and weight`, `age, height and weight`; of many the first few."""
    if len(names) > 6:
        return listing(names, 5)
    return " and ".join([", ".join(names[:-1]), names[-1]]) if len(names) > 1 else "".join(names)


def _one_class(collection: Collection) -> Finding:
    label = collection.labels[0] if collection.labels else "none"
    advice = "a class is told from others, so add images of a second one, if only of 'other'"
    depth = len(collection.root.parts)
    inner = {item.path.parts[depth + 1] for item in collection.items if len(item.path.parts) > depth + 2}
    if collection.layout == "folders" and len(inner) > 1:
        advice = f"its {len(inner)} folders look like classes, so you may mean {shown(collection.root / label)}"
    count = len(collection.items)
    return Finding("one-class", "error", f"there is one class only, {label!r}", advice, count)


def _no_boxes(collection: Collection) -> list[Finding]:
    if any(collection.class_counts("train")):
        return []
    advice = "annotate some of the objects to be found"
    return [Finding("no-boxes", "error", "no training image has a box", advice, len(collection.part("train")))]


def _constant_targets(collection: Collection, train: tuple[Item, ...]) -> list[Finding]:
    for position, name in enumerate(collection.labels):
        values = {item.target[position] for item in train if isinstance(item.target, tuple)}
        if len(values) == 1:
            title = f"{name!r} is {values.pop():g} for every training image"
            advice = "remove the column: there is nothing to learn from it"
            return [Finding("constant-target", "error", title, advice, len(train), (Example((), name),))]
    return []
