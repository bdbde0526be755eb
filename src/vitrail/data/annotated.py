"""From annotated objects, whichever format they came in, to boxes or masks: what is wrong with each is counted here."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from vitrail.data.boxes import Boxes, Corners
from vitrail.data.collection import Collection, Item
from vitrail.data.findings import Example, Finding
from vitrail.data.headers import Header, Size, headers
from vitrail.data.masks import IGNORE, MOST, DrawnMask, Region
from vitrail.data.names import counted, listing, shown
from vitrail.data.turning import made_as_stored, stored_size, turned_box
from vitrail.errors import VitrailError

SLACK = 1.0  # pixels by which a box may reach beyond its picture: rounding, or counting from 1
BACKGROUND = "background"


@dataclass(slots=True)
class Thing:
    """One annotated object, as written."""

    number: int  # its class
    box: Corners | None  # left, top, right, bottom
    crowd: bool = False
    polygons: tuple[tuple[float, ...], ...] = ()
    runs: str | tuple[int, ...] | None = None
    runs_size: Size = (0, 0)


@dataclass(slots=True)
class Annotated:
    """One picture and its objects. With `relative`, coordinates are shares of its width and height."""

    path: Path
    things: list[Thing]
    split: str | None = None
    claimed: Size | None = None  # what the annotation says of the picture's size
    source: Path | None = None  # the annotation's file
    relative: bool = False


@dataclass
class Source:
    """What a reader of a format found."""

    root: Path
    layout: str
    labels: list[str]
    pictures: list[Annotated]
    findings: list[Finding] = field(default_factory=list)
    table: Path | None = None


def as_collection(source: Source, task: str | None) -> Collection:
    """Boxes, or masks where `task` asks for them or there are outlines and no boxes."""
    if not source.pictures:
        raise VitrailError(f"{shown(source.table or source.root)} annotates no image that is there")
    things = [thing for picture in source.pictures for thing in picture.things]
    if task is None and things and all(thing.box is None for thing in things):
        task = "segment"
    known = headers([picture.path for picture in source.pictures])
    fitting, odd = _of_right_size(source.pictures, known)
    findings = [*source.findings, *odd]
    if task == "segment":
        items, labels = _with_masks(source, fitting, things)
    else:
        faults = Faults()
        items = [Item(one.path, _boxes(one, place, faults, source.labels), one.split) for one, place in fitting]
        labels, items, unused = _used(source.labels, items)
        findings += [*faults.findings(), *unused, *_empty(items)]
    if not items:
        raise VitrailError(f"{shown(source.table or source.root)}: {findings[-1].title}; {findings[-1].advice}")
    return Collection(
        root=source.root,
        layout=source.layout,
        task=task or "detect",
        labels=tuple(labels),
        items=tuple(items),
        findings=tuple(findings),
        table=source.table,
    )


Fitting = list[tuple[Annotated, Header]]  # with the orientation to turn the annotation by


def _of_right_size(pictures: Sequence[Annotated], known: Sequence[Header | None]) -> tuple[Fitting, list[Finding]]:
    """Pictures whose annotation was made for their size; one that cannot be read stays, and others report it."""
    fitting, odd = [], []
    for picture, found in zip(pictures, known, strict=True):
        claimed = picture.claimed
        if found is None:
            fitting.append((picture, Header(claimed or (0, 0))))
        elif claimed is None or claimed == found.size:
            fitting.append((picture, Header(found.size)))
        elif made_as_stored(claimed, found.size, found.orientation):
            fitting.append((picture, found))
        else:
            (height, width), (tall, wide) = found.size, claimed
            note = f"is {width} x {height} upright, annotated as {wide} x {tall}"
            odd.append(Example((picture.path,), note))
    if not odd:
        return fitting, []
    title = f"{counted(len(odd), 'image has', 'images have')} another size than their annotation says"
    advice = "annotate the images as they are, or put back those that were annotated; they are left out"
    return fitting, [Finding("sizes-differ", "error", title, advice, len(odd), tuple(odd))]


# ---- boxes


@dataclass
class Faults:
    """Boxes that are not used as they are, by what is wrong with them."""

    found: dict[str, list[Example]] = field(default_factory=dict)

    def add(self, kind: str, path: Path, box: Corners, label: str) -> None:
        numbers = " ".join(f"{value:g}" for value in box)
        self.found.setdefault(kind, []).append(Example((path,), f"{label}: {numbers}"))

    def findings(self) -> list[Finding]:
        left_out = "mend or remove them; they are left out"
        known = (  # kind, severity, what, advice
            ("inverted-boxes", "error", "ends before it begins", "end before they begin", left_out),
            ("outside-boxes", "error", "lies outside its image", "lie outside their image", left_out),
            ("unknown-class-boxes", "error", "is of no known class", "are of no known class", left_out),
            ("empty-boxes", "warning", "is empty", "are empty", left_out),
            (
                "clipped-boxes",
                "warning",
                "reaches beyond its image",
                "reach beyond their image",
                "look whether they fit their images; they are cut at the border",
            ),
            ("repeated-boxes", "warning", "is there twice", "are there twice", "remove them; each is used once"),
        )
        findings = []
        for kind, severity, one, many, advice in known:
            if some := self.found.get(kind):
                title = counted(len(some), f"box {one}", f"boxes {many}")
                findings.append(Finding(kind, severity, title, advice, len(some), tuple(some)))
        return findings


def _boxes(picture: Annotated, place: Header, faults: Faults, labels: Sequence[str]) -> Boxes:
    stored = stored_size(place.size, place.orientation)
    kept: dict[tuple[Corners, int], bool] = {}
    for thing in picture.things:
        written = thing.box or _around(thing)
        if written is None:
            continue
        label = labels[thing.number] if 0 <= thing.number < len(labels) else f"class {thing.number}"
        fault, box = _judged(turned_box(written, place.orientation, stored), place.size, picture.relative)
        if not 0 <= thing.number < len(labels):
            fault, box = "unknown-class-boxes", None
        elif box is not None and (box, thing.number) in kept:
            fault, box = "repeated-boxes", None
        if fault is not None:
            faults.add(fault, picture.path, written, label)
        if box is not None:
            kept[box, thing.number] = thing.crowd
    return Boxes(tuple(box for box, _ in kept), tuple(number for _, number in kept), tuple(kept.values()), place.size)


def _judged(written: Corners, size: Size, relative: bool) -> tuple[str | None, Corners | None]:
    """What is wrong with a box, and the box as far as it can be used."""
    height, width = size
    if not all(math.isfinite(value) for value in written):
        return "inverted-boxes", None
    left, top, right, bottom = written
    if right < left or bottom < top:
        return "inverted-boxes", None
    if right == left or bottom == top:
        return "empty-boxes", None
    if size == (0, 0):  # the picture cannot be read, which others report
        return None, None
    if relative:
        left, top, right, bottom = left * width, top * height, right * width, bottom * height
    box = (max(0.0, left), max(0.0, top), min(float(width), right), min(float(height), bottom))
    if box[0] >= box[2] or box[1] >= box[3]:
        return "outside-boxes", None
    beyond = max(-left, -top, right - width, bottom - height)
    return ("clipped-boxes" if beyond > SLACK else None), box


def _around(thing: Thing) -> Corners | None:
    """The box of an outline."""
    xs = [value for polygon in thing.polygons for value in polygon[0::2]]
    ys = [value for polygon in thing.polygons for value in polygon[1::2]]
    return (min(xs), min(ys), max(xs), max(ys)) if xs and ys else None


def _used(labels: list[str], items: list[Item]) -> tuple[list[str], list[Item], list[Finding]]:
    """Without the classes that nobody has: they could neither be learnt nor measured."""
    counts = {number for item in items if isinstance(item.target, Boxes) for number in item.target.classes}
    if not counts or len(counts) == len(labels):
        return labels, items, []
    kept = sorted(counts)
    place = {number: index for index, number in enumerate(kept)}
    moved = [
        Item(item.path, _renumbered(item.target, place), item.split, item.group)
        for item in items
        if isinstance(item.target, Boxes)
    ]
    names = [label for number, label in enumerate(labels) if number not in counts]
    title = f"{counted(len(names), 'class has', 'classes have')} no box: {listing(names, 5)}"
    advice = "nothing to do, if that is meant: they are left out"
    return [labels[number] for number in kept], moved, [Finding("unused-classes", "note", title, advice, len(names))]


def _renumbered(boxes: Boxes, place: dict[int, int]) -> Boxes:
    return Boxes(boxes.corners, tuple(place[number] for number in boxes.classes), boxes.crowd, boxes.size)


def _empty(items: Iterable[Item]) -> list[Finding]:
    bare = [Example((item.path,)) for item in items if isinstance(item.target, Boxes) and not len(item.target)]
    if not bare:
        return []
    title = f"{counted(len(bare), 'image has', 'images have')} no object"
    advice = "nothing to do, if that is meant: they teach what is none"
    return [Finding("no-objects", "note", title, advice, len(bare), tuple(bare))]


# ---- masks


def _with_masks(source: Source, fitting: Fitting, things: list[Thing]) -> tuple[list[Item], list[str]]:
    """What no outline covers is background, class 0."""
    if not any(thing.polygons or thing.runs is not None for thing in things):
        raise VitrailError(f"{shown(source.table or source.root)} has no outlines, which task='segment' needs")
    names = [label for label in source.labels if label.casefold() != BACKGROUND]
    if len(names) + 1 > MOST:
        raise VitrailError(f"{shown(source.root)} has {len(names)} classes; masks have at most {MOST}")
    number = {label: names.index(label) + 1 if label in names else 0 for label in source.labels}
    numbers = [number[label] for label in source.labels]
    return [Item(one.path, _drawn(one, place, numbers), one.split) for one, place in fitting], [BACKGROUND, *names]


def _drawn(picture: Annotated, place: Header, numbers: Sequence[int]) -> DrawnMask:
    """Large regions first, so that a cup is seen on its table."""
    height, width = place.size if picture.relative else (1, 1)
    outlined = [thing for thing in picture.things if thing.polygons or thing.runs is not None]
    outlined.sort(key=_area, reverse=True)
    regions = tuple(
        Region(
            IGNORE if thing.crowd or not 0 <= thing.number < len(numbers) else numbers[thing.number],
            tuple(
                tuple(value * (height if odd % 2 else width) for odd, value in enumerate(polygon))
                for polygon in thing.polygons
            ),
            thing.runs,
            thing.runs_size,
        )
        for thing in outlined
    )
    mark = hashlib.blake2b(f"{place} {regions}".encode(), digest_size=16).hexdigest()
    source = picture.source or picture.path
    return DrawnMask(mark, source, place.size, picture.path.name, regions, place.orientation)


def _area(thing: Thing) -> float:
    box = thing.box or _around(thing)
    return (box[2] - box[0]) * (box[3] - box[1]) if box else 0.0
