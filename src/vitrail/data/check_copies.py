"""Images that are there twice: in one class a waste, in two a contradiction, in train and val a score too good."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from vitrail.data.boxes import Boxes
from vitrail.data.collection import Collection, Item
from vitrail.data.examine import Examined
from vitrail.data.findings import Example, Finding
from vitrail.data.likeness import alike, is_flat
from vitrail.data.names import counted


@dataclass(frozen=True)
class _Sort:
    """How copies of one sort are spoken of."""

    kind: str
    what: str
    grave: str  # severity where they contradict or cross


_EXACT = _Sort("copies", "identical images", "error")
_NEAR = _Sort("near-copies", "images that look the same", "warning")


def check_copies(collection: Collection, seen: Sequence[Examined], automatic: bool) -> list[Finding]:
    """`collection` with every item in a part, by the user or `automatic`; `seen` in the order of its items."""
    exact = _same_bytes(seen)
    near = _look_alikes(seen, exact)
    return [*_judge(collection, exact, _EXACT, automatic), *_judge(collection, near, _NEAR, automatic)]


def _same_bytes(seen: Sequence[Examined]) -> list[list[int]]:
    places: dict[bytes, list[int]] = {}
    for place, one in enumerate(seen):
        if one.digest and one.problem is None:
            places.setdefault(one.digest, []).append(place)
    return [group for group in places.values() if len(group) > 1]


def _look_alikes(seen: Sequence[Examined], exact: list[list[int]]) -> list[list[int]]:
    """Groups of places. Of identical images one is compared for all, and all are in its group."""
    copies = {group[0]: group for group in exact}
    doubled = {place for group in exact for place in group[1:]}
    places = [
        place
        for place, one in enumerate(seen)
        if one.small is not None and place not in doubled and one.problem is None and not is_flat(one.small)
    ]
    pictures = [small for place in places if (small := seen[place].small) is not None]
    if len(places) < 2:
        return []
    hashes = np.array([seen[place].hash for place in places], dtype=np.uint64)
    groups = [[places[member] for member in group] for group in alike(hashes, np.stack(pictures))]
    return [sorted(copy for place in group for copy in copies.get(place, [place])) for group in groups]


def _judge(collection: Collection, groups: list[list[int]], sort: _Sort, automatic: bool) -> list[Finding]:
    """Each group under the gravest thing that is wrong with it."""
    contradicting, crossing, plain = [], [], []
    what = {"regress": "numbers", "detect": "boxes", "segment": "masks"}.get(collection.task, "labels")
    for group in groups:
        items = [collection.items[place] for place in group]
        if _contradict(items, collection.task, sort):
            contradicting.append(_example(items, collection))
        elif len({item.split for item in items}) > 1:
            crossing.append(_example(items, collection))
        else:
            plain.append(_example(items, collection))
    found = []
    if contradicting:
        title = f"{_groups(contradicting)} of {sort.what} with different {what}"
        advice = f"keep each image once, with its right {what if what in ('numbers', 'boxes') else what[:-1]}"
        found.append(_finding(f"{sort.kind}-with-different-labels", sort.grave, title, advice, contradicting))
    if crossing:
        title = f"{_groups(crossing)} of {sort.what}, in more than one part"
        advice = "keep each in one part: a score on images seen in training is too good"
        if automatic:
            advice = "give such images one name in a column 'group', or keep one of each: the score would be too good"
        found.append(_finding(f"{sort.kind}-across-parts", sort.grave, title, advice, crossing))
    if plain:
        title = f"{_groups(plain)} of {sort.what}"
        found.append(_finding(sort.kind, "warning", title, "keep one of each: copies add weight, not knowledge", plain))
    return found


def _contradict(items: list[Item], task: str, sort: _Sort) -> bool:
    """Different classes. Different numbers, boxes and masks only where the images are the same to the byte: two frames
    of a film may well differ in what was measured."""
    if task in ("regress", "detect", "segment") and sort is _NEAR:
        return False
    return len({item.target for item in items}) > 1


def _example(items: list[Item], collection: Collection) -> Example:
    """The files, and what tells them apart."""
    notes = []
    if collection.task != "segment" and len({item.target for item in items}) > 1:
        notes.append(" / ".join(dict.fromkeys(_target(item, collection) for item in items)))
    if len({item.split for item in items}) > 1:
        notes.append(" / ".join(dict.fromkeys(item.split or "train" for item in items)))
    return Example(tuple(item.path for item in items), ", ".join(notes))


def _target(item: Item, collection: Collection) -> str:
    if isinstance(item.target, Boxes):
        return counted(len(item.target), "box", "boxes")
    if collection.task == "regress":
        return " ".join(f"{value:g}" for value in item.target) if isinstance(item.target, tuple) else ""
    return "|".join(collection.labels[number] for number in item.classes()) or "(none)"


def _groups(examples: list[Example]) -> str:
    return f"{counted(len(examples), 'group')} ({counted(sum(len(one.files) for one in examples), 'file')})"


def _finding(kind: str, severity: str, title: str, advice: str, examples: list[Example]) -> Finding:
    return Finding(kind, severity, title, advice, len(examples), tuple(examples))
