"""What is odd with boxes that are all inside of their pictures; those that are not were counted when they were read."""

from __future__ import annotations

from collections.abc import Callable

from vitrail.data.boxes import Boxes, Corners
from vitrail.data.collection import Collection
from vitrail.data.findings import Example, Finding
from vitrail.data.names import counted

TINY_PIXELS, TINY_SHARE = 2.0, 0.004  # of a box's shorter side; a share of the picture's shorter side
MANY_EXAMPLES = 1000


def check_boxes(collection: Collection) -> list[Finding]:
    if collection.task != "detect":
        return []
    title = "is so small that little of it can be seen", "are so small that little of them can be seen"
    advice = "look whether they are meant; small objects need larger input"
    tiny = _finding(collection, "tiny-boxes", "note", title, advice, _tiny)
    title = "has the place of another of another class", "have the place of another of another class"
    both = _finding(collection, "doubtful-boxes", "warning", title, "keep the right class of each", _same_place)
    return [*both, *tiny]


def _tiny(boxes: Boxes, place: int) -> bool:
    left, top, right, bottom = boxes.corners[place]
    side = min(right - left, bottom - top)
    return side < TINY_PIXELS or side < TINY_SHARE * min(boxes.size)


def _same_place(boxes: Boxes, place: int) -> bool:
    return boxes.corners[place] in boxes.corners[:place]


# ---- parts


def _finding(
    collection: Collection,
    kind: str,
    severity: str,
    what: tuple[str, str],
    advice: str,
    has: Callable[[Boxes, int], bool],
) -> list[Finding]:
    found = [
        Example((item.path,), _written(boxes.corners[place], collection.labels[boxes.classes[place]]))
        for item in collection.items
        if isinstance(boxes := item.target, Boxes)
        for place in range(len(boxes))
        if has(boxes, place)
    ]
    if not found:
        return []
    title = counted(len(found), f"box {what[0]}", f"boxes {what[1]}")
    return [Finding(kind, severity, title, advice, len(found), tuple(found[:MANY_EXAMPLES]))]


def _written(box: Corners, label: str) -> str:
    return f"{label}: {' '.join(f'{value:g}' for value in box)}"
