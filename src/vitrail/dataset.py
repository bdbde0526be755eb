"""A set of images with what is to be learnt from each: the one object that every layout becomes.

Nothing here knows a task. What a target means, in which words a dataset is described and what is wrong with it, its
task says (`vitrail.tasks.task_data`).
"""

from __future__ import annotations

import dataclasses
import functools
from abc import abstractmethod
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias, TypeVar, overload

from vitrail.findings import Finding
from vitrail.images.stored_image import StoredImage

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

    path: Path  # what it is called, and its file where it is one here
    target: Target
    split: str | None = None
    group: str | None = None  # images of one group stay on one side of a split
    stored: StoredImage | None = None  # where it lies if it is no file here: in a tar, in a Parquet file, on a store

    @property
    def source(self) -> Path | StoredImage:
        """What it is read from."""
        return self.path if self.stored is None else self.stored

    def classes(self) -> tuple[int, ...]:
        """The classes of its target, for counting; none for numbers."""
        if isinstance(self.target, int):
            return (self.target,)
        if isinstance(self.target, StructuredTarget):
            return self.target.classes_present()
        return tuple(value for value in self.target if isinstance(value, int))


T = TypeVar("T")


class Lazy(Sequence[T]):
    """A sequence whose members are made when they are asked for, by `at`."""

    @abstractmethod
    def at(self, index: int) -> T:
        """One of them; index: from 0 to the length."""

    @overload
    def __getitem__(self, index: int) -> T: ...

    @overload
    def __getitem__(self, index: slice) -> Sequence[T]: ...

    def __getitem__(self, index: int | slice) -> T | Sequence[T]:
        if isinstance(index, slice):
            return [self.at(place) for place in range(*index.indices(len(self)))]
        place = index + len(self) if index < 0 else index
        if not 0 <= place < len(self):
            raise IndexError(index)
        return self.at(place)


class ManyItems(Lazy[Item]):
    """Images with a class each, as numbers in arrays: millions take little memory."""

    targets: Any  # (N,) int32, the class of each

    @abstractmethod
    def class_counts(self) -> Mapping[int, int]:
        """How many there are of each class."""

    def __len__(self) -> int:
        return len(self.targets)


class ItemsByPart(Lazy[Item]):
    """The items of train, val and test, one part after the other; a part may be `ManyItems`."""

    def __init__(self, parts: Mapping[str, Sequence[Item]]) -> None:
        self.parts = dict(parts)

    def at(self, index: int) -> Item:
        for items in self.parts.values():
            if index < len(items):
                return items[index]
            index -= len(items)
        raise IndexError(index)

    def __len__(self) -> int:
        return sum(len(items) for items in self.parts.values())


class Sources(Lazy["Path | StoredImage"]):
    """What items are read from, looked up one by one."""

    def __init__(self, items: Sequence[Item]) -> None:
        self.items = items

    def at(self, index: int) -> Path | StoredImage:
        return self.items[index].source

    def __len__(self) -> int:
        return len(self.items)


def targets_in(items: Sequence[Item]) -> Sequence[Any]:
    """The target of each item."""
    if isinstance(items, ManyItems):
        targets: Sequence[Any] = items.targets
        return targets
    return [item.target for item in items]


def classes_at(items: Sequence[Item], indices: Sequence[int]) -> list[tuple[int, ...]]:
    """The classes of some of the items."""
    if isinstance(items, ManyItems):
        return [(int(items.targets[index]),) for index in indices]
    return [items[index].classes() for index in indices]


@dataclass(frozen=True)
class Dataset:
    """A set of images with their targets, read but not decoded."""

    root: Path  # what paths are shown relative to
    layout: str  # how it lies on disk
    task: str  # the name of the task that it is for
    labels: tuple[str, ...]  # class names in order, or the names of the numbers
    items: Sequence[Item] = field(repr=False)
    findings: tuple[Finding, ...] = field(default=(), repr=False)  # what was noticed while it was read
    table: Path | None = None
    manifest: str | None = None  # the address of the manifest that lists it

    @property
    def address(self) -> str | Path:
        """What the data is called: the manifest, the table or the folder."""
        return self.manifest or self.table or self.root

    @property
    def has_validation(self) -> bool:
        """Whether some of its images are a validation part already."""
        return len(self.part("val")) > 0

    @property
    def is_divided(self) -> bool:
        """Whether its images lie in parts."""
        if isinstance(self.items, ItemsByPart):
            return len(self.items.parts) > 1
        return any(item.split for item in self.items)

    @property
    def usual_holdout(self) -> float:
        """The part of train that is held out where there is no validation part. With a test part it does not measure
        the model, it only chooses among its weights."""
        return 0.1 if self.part("test") else 0.2

    def part(self, split: str) -> Sequence[Item]:
        """The items of train, val or test; those without a part count as train."""
        return self._parts.get(split, ())

    @functools.cached_property
    def _parts(self) -> Mapping[str, Sequence[Item]]:
        """Found once: callers ask for each image, and of 60,000 images looking for them again took minutes."""
        if isinstance(self.items, ItemsByPart):
            return self.items.parts
        parts: dict[str, list[Item]] = {}
        for item in self.items:
            parts.setdefault(item.split or "train", []).append(item)
        return {split: tuple(items) for split, items in parts.items()}

    def class_counts(self, split: str | None = None) -> list[int]:
        """Images of each class, in the order of `labels`; boxes of each class where there are boxes."""
        counts: Counter[int] = Counter()
        for items in self._parts.values() if split is None else [self.part(split)]:
            if isinstance(items, ManyItems):
                counts.update(items.class_counts())
            else:
                counts.update(label for item in items for label in item.classes())
        return [counts[number] for number in range(len(self.labels))]

    def without(self, paths: Collection[Path]) -> Dataset:
        """All but these images. Of `ManyItems` the broken ones are left out before there are items."""
        if not isinstance(self.items, ItemsByPart):
            return self.replace(items=tuple(item for item in self.items if item.path not in paths))
        parts = {
            split: items if isinstance(items, ManyItems) else tuple(item for item in items if item.path not in paths)
            for split, items in self.items.parts.items()
        }
        return self.replace(items=ItemsByPart(parts))

    def replace(self, **changes: object) -> Dataset:
        """A copy with some fields changed."""
        return dataclasses.replace(self, **changes)  # type: ignore[arg-type]
