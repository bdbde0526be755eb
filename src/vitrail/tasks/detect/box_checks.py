"""What is odd with boxes that are all inside of their pictures; those that are not were counted when they were read."""

from __future__ import annotations

from collections.abc import Callable

from vitrail.dataset import Dataset
from vitrail.findings import Example, Finding
from vitrail.images.exif import Corners
from vitrail.tasks.detect.boxes import Boxes
from vitrail.text import counted

TINY_PIXELS, TINY_SHARE = 2.0, 0.004  # of a box's shorter side; a share of the picture's shorter side
MANY_EXAMPLES = 1000


def check_boxes(dataset: Dataset) -> list[Finding]:
    title = "is so small that little of it can be seen", "are so small that little of them can be seen"
    advice = "look whether they are meant; small objects need larger input"
    tiny = _finding(dataset, "tiny-boxes", "note", title, advice, _tiny)
    title = "has the place of another of another class", "have the place of another of another class"
    both = _finding(dataset, "doubtful-boxes", "warning", title, "keep the right class of each", _same_place)
    return [*both, *tiny]


def _tiny(boxes: Boxes, index: int) -> bool:
    left, top, right, bottom = boxes.corners[index]
    side = min(right - left, bottom - top)
    return side < TINY_PIXELS or side < TINY_SHARE * min(boxes.size)


def _same_place(boxes: Boxes, index: int) -> bool:
    return boxes.corners[index] in boxes.corners[:index]


# ---- parts


def _finding(
    dataset: Dataset,
    kind: str,
    severity: str,
    what: tuple[str, str],
    advice: str,
    has: Callable[[Boxes, int], bool],
) -> list[Finding]:
    examples = [
        Example((item.path,), _written(boxes.corners[index], dataset.labels[boxes.classes[index]]))
        for item in dataset.items
        if isinstance(boxes := item.target, Boxes)
        for index in range(len(boxes))
        if has(boxes, index)
    ]
    if not examples:
        return []
    title = counted(len(examples), f"box {what[0]}", f"boxes {what[1]}")
    return [Finding(kind, severity, title, advice, len(examples), tuple(examples[:MANY_EXAMPLES]))]


def _written(box: Corners, label: str) -> str:
    return f"{label}: {' '.join(f'{value:g}' for value in box)}"
