"""From annotated objects, whichever format they came in, to boxes: what is wrong with each is counted here."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from vitrail.annotations import AnnotatedImage
from vitrail.dataset import Item
from vitrail.findings import Example, Finding
from vitrail.images.exif import Corners, stored_size, turned_box
from vitrail.images.headers import Header, Size
from vitrail.tasks.detect.boxes import Boxes
from vitrail.text import counted, listing

SLACK = 1.0  # pixels by which a box may reach beyond its picture: rounding, or counting from 1
LEFT_OUT = "mend or remove them; they are left out"
FAULTS = (  # kind, severity, what one does, what several do, advice
    ("inverted-boxes", "error", "ends before it begins", "end before they begin", LEFT_OUT),
    ("outside-boxes", "error", "lies outside its image", "lie outside their image", LEFT_OUT),
    ("unknown-class-boxes", "error", "is of no known class", "are of no known class", LEFT_OUT),
    ("empty-boxes", "warning", "is empty", "are empty", LEFT_OUT),
    (
        "clipped-boxes",
        "warning",
        "reaches beyond its image",
        "reach beyond their image",
        "look whether they fit their images; they are cut at the border",
    ),
    ("repeated-boxes", "warning", "is there twice", "are there twice", "remove them; each is used once"),
)


@dataclass
class BoxFaults:
    """Boxes that are not used as they are, by what is wrong with them."""

    examples: dict[str, list[Example]] = field(default_factory=dict)

    def add(self, kind: str, path: Path, box: Corners, label: str) -> None:
        numbers = " ".join(f"{value:g}" for value in box)
        self.examples.setdefault(kind, []).append(Example((path,), f"{label}: {numbers}"))

    def findings(self) -> list[Finding]:
        findings = []
        for kind, severity, one, many, advice in FAULTS:
            if examples := self.examples.get(kind):
                title = counted(len(examples), f"box {one}", f"boxes {many}")
                findings.append(Finding(kind, severity, title, advice, len(examples), tuple(examples)))
        return findings


def boxes_of(image: AnnotatedImage, header: Header, faults: BoxFaults, labels: Sequence[str]) -> Boxes:
    """The boxes of an image that can be used; what is wrong with any of them goes to `faults`."""
    stored = stored_size(header.size, header.orientation)
    crowds: dict[tuple[Corners, int], bool] = {}  # of each usable box and its class
    for annotation in image.annotations:
        written, number = annotation.corners(), annotation.number
        if written is None:
            continue
        label = labels[number] if 0 <= number < len(labels) else f"class {number}"
        fault, box = _judged(turned_box(written, header.orientation, stored), header.size, image.relative)
        if not 0 <= number < len(labels):
            fault, box = "unknown-class-boxes", None
        elif box is not None and (box, number) in crowds:
            fault, box = "repeated-boxes", None
        if fault is not None:
            faults.add(fault, image.path, written, label)
        if box is not None:
            crowds[box, number] = annotation.crowd
    corners, classes = tuple(box for box, _ in crowds), tuple(number for _, number in crowds)
    return Boxes(corners, classes, tuple(crowds.values()), header.size)


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


def without_unused_classes(
    labels: Sequence[str], items: Sequence[Item]
) -> tuple[Sequence[str], Sequence[Item], list[Finding]]:
    """Without the classes that nobody has: they could neither be learnt nor measured."""
    used = {number for item in items if isinstance(item.target, Boxes) for number in item.target.classes}
    if not used or len(used) == len(labels):
        return labels, items, []
    numbers = {number: index for index, number in enumerate(sorted(used))}
    renumbered = [
        Item(item.path, _renumbered(item.target, numbers), item.split, item.group)
        for item in items
        if isinstance(item.target, Boxes)
    ]
    names = [label for number, label in enumerate(labels) if number not in used]
    title = f"{counted(len(names), 'class has', 'classes have')} no box: {listing(names, 5)}"
    advice = "nothing to do, if that is meant: they are left out"
    finding = Finding("unused-classes", "note", title, advice, len(names))
    return [labels[number] for number in numbers], renumbered, [finding]


def _renumbered(boxes: Boxes, numbers: dict[int, int]) -> Boxes:
    return Boxes(boxes.corners, tuple(numbers[number] for number in boxes.classes), boxes.crowd, boxes.size)
