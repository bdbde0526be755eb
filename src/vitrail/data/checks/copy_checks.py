"""Images that are there twice: in one class a waste, in two a contradiction, in train and val a score too good."""

from __future__ import annotations

from collections.abc import Container, Sequence
from dataclasses import dataclass

import numpy as np

from vitrail.data.checks.examine import Examined
from vitrail.data.checks.perceptual_hash import alike, is_flat
from vitrail.dataset import Dataset, Item
from vitrail.findings import Example, Finding, about_files
from vitrail.tasks.registry import task_data
from vitrail.text import counted


@dataclass(frozen=True)
class _CopyKind:
    """What copies of one kind are called, and how grave they are."""

    kind: str
    noun: str
    severity: str  # where they contradict each other or lie in several parts


_EXACT = _CopyKind("copies", "identical images", "error")
_NEAR = _CopyKind("near-copies", "images that look the same", "warning")


def check_copies(
    dataset: Dataset, examined: Sequence[Examined], automatic: bool, placeholders: Container[int] = ()
) -> list[Finding]:
    """Images that are there more than once: identical files, and files that look the same.

    `dataset` has every item in a part, by the user or `automatic`; `examined` is in the order of its items.
    placeholders: indices of items that stand for missing images. Their copies are another finding's."""
    exact = [group for group in same_bytes(examined) if group[0] not in placeholders]
    near = [group for group in _look_alikes(examined, exact) if not all(index in placeholders for index in group)]
    return [*_judge(dataset, exact, _EXACT, automatic), *_judge(dataset, near, _NEAR, automatic)]


def same_bytes(examined: Sequence[Examined]) -> list[list[int]]:
    """Groups of indices of identical files."""
    places: dict[bytes, list[int]] = {}
    for place, image in enumerate(examined):
        if image.digest and image.problem is None:
            places.setdefault(image.digest, []).append(place)
    return [group for group in places.values() if len(group) > 1]


def _look_alikes(examined: Sequence[Examined], exact: list[list[int]]) -> list[list[int]]:
    """Groups of places. Of identical images one is compared for all, and all are in its group."""
    copies = {group[0]: group for group in exact}
    doubled = {place for group in exact for place in group[1:]}
    places = [
        place
        for place, image in enumerate(examined)
        if image.small is not None and place not in doubled and image.problem is None and not is_flat(image.small)
    ]
    pictures = [small for place in places if (small := examined[place].small) is not None]
    if len(places) < 2:
        return []
    hashes = np.array([examined[place].hash for place in places], dtype=np.uint64)
    groups = [[places[member] for member in group] for group in alike(hashes, np.stack(pictures))]
    return [sorted(copy for place in group for copy in copies.get(place, [place])) for group in groups]


def _judge(dataset: Dataset, groups: list[list[int]], copies: _CopyKind, automatic: bool) -> list[Finding]:
    """Each group under the gravest thing that is wrong with it. Where targets vary between images that look the same,
    they contradict each other only if the images are the same to the byte."""
    contradicting, crossing, plain = [], [], []
    data = task_data(dataset.task)
    one, many = data.target_noun
    for group in groups:
        items = [dataset.items[index] for index in group]
        if not (data.targets_vary and copies is _NEAR) and _targets_differ(items):
            contradicting.append(example_of_copies(items, dataset))
        elif len({item.split for item in items}) > 1:
            crossing.append(example_of_copies(items, dataset))
        else:
            plain.append(example_of_copies(items, dataset))
    differing = f"{_groups(contradicting)} of {copies.noun} with different {many}"
    keep_right = f"keep each image once, with its right {one}"
    across = f"{_groups(crossing)} of {copies.noun}, in more than one part"
    keep_apart = "keep each in one part: a score on images seen in training is too good"
    if automatic:
        keep_apart = "give such images one name in a column 'group', or keep one of each: the score would be too good"
    harmless = f"{_groups(plain)} of {copies.noun}"
    return [
        *about_files(f"{copies.kind}-with-different-labels", copies.severity, differing, keep_right, contradicting),
        *about_files(f"{copies.kind}-across-parts", copies.severity, across, keep_apart, crossing),
        *about_files(copies.kind, "warning", harmless, "keep one of each: copies add weight, not knowledge", plain),
    ]


def _targets_differ(items: list[Item]) -> bool:
    return len({item.target for item in items}) > 1


def example_of_copies(items: list[Item], dataset: Dataset) -> Example:
    """The files, and what tells them apart."""
    notes = []
    if _targets_differ(items):
        data = task_data(dataset.task)
        notes.append(" / ".join(dict.fromkeys(data.target_words(item, dataset) for item in items)))
    if len({item.split for item in items}) > 1:
        notes.append(" / ".join(dict.fromkeys(item.split or "train" for item in items)))
    return Example(tuple(item.path for item in items), ", ".join(note for note in notes if note))


def _groups(examples: list[Example]) -> str:
    return f"{counted(len(examples), 'group')} ({counted(sum(len(example.files) for example in examples), 'file')})"
