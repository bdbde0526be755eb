"""What is wrong or odd with depth maps, once every one of them has been read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from vitrail.dataset import Dataset, Item
from vitrail.findings import Example, Finding
from vitrail.images.unreadable import UnreadableImage
from vitrail.tasks.depth.depth_maps import DepthFile
from vitrail.tasks.task_data import TargetLook
from vitrail.text import counted

SPARSE = 0.05  # share of known pixels below which a map is worth a note
OUTLYING = 20.0  # times the median of the set that the median of one map may be, or that part of it


@dataclass(frozen=True)
class DepthLook(TargetLook):
    """What one depth map holds."""

    known: float = 0.0  # share of its pixels
    least: float = 0.0
    median: float = 0.0
    most: float = 0.0


def look_at_depth(item: Item) -> DepthLook | None:
    """None where there is no depth map."""
    if not isinstance(item.target, DepthFile):
        return None
    try:
        depth = item.target.read()
    except UnreadableImage as error:
        return DepthLook(problem=error)
    values = depth[depth > 0]
    if not values.size:
        return DepthLook()
    share = values.size / depth.size
    return DepthLook(known=share, least=float(values.min()), median=float(np.median(values)), most=float(values.max()))


def check_depth(dataset: Dataset, looks: Sequence[TargetLook | None]) -> list[Finding]:
    """`looks` in the order of the dataset's items; empty after a fast check, which reads no map."""
    pairs = [(item, look) for item, look in zip(dataset.items, looks, strict=False) if isinstance(look, DepthLook)]
    if not pairs:
        return []
    broken = [_example(item, look.problem.why) for item, look in pairs if look.problem is not None]
    whole = [(item, look) for item, look in pairs if look.problem is None]
    empty = [_example(item) for item, look in whole if not look.known]
    sparse = [_example(item, f"{100 * look.known:.2g} % known") for item, look in whole if 0 < look.known < SPARSE]
    findings = [
        _finding("broken-depth-maps", "error", broken, "cannot be read", "mend them; they are left out"),
        _finding("empty-depth-maps", "warning", empty, "have no known pixel", "measure them, or remove them"),
        _finding("sparse-depth-maps", "note", sparse, "have few known pixels", "nothing to do, if that is meant"),
        _outliers(dataset, whole),
    ]
    return [finding for finding in findings if finding is not None] + _range(dataset, [look for _, look in whole])


def _outliers(dataset: Dataset, whole: Sequence[tuple[Item, DepthLook]]) -> Finding | None:
    """Maps in another unit than the rest: millimetres among metres."""
    medians = [look.median for _, look in whole if look.known]
    if len(medians) < 3:
        return None
    usual = float(np.median(medians))
    odd = [
        _example(item, f"median {look.median:.4g}, usually {usual:.4g}")
        for item, look in whole
        if look.known and not usual / OUTLYING < look.median < usual * OUTLYING
    ]
    advice = "look whether they are in the same unit as the others"
    return _finding("depth-scale-differs", "warning", odd, "are far off the others", advice)


def _range(dataset: Dataset, looks: Sequence[DepthLook]) -> list[Finding]:
    known = [look for look in looks if look.known]
    if not known:
        return []
    least, most = min(look.least for look in known), max(look.most for look in known)
    share = np.mean([look.known for look in known])
    title = f"{dataset.labels[0]}: {least:.4g} to {most:.4g}, {100 * share:.3g} % of the pixels are known"
    return [Finding("depth-range", "note", title, "nothing to do: good to know", len(known))]


def _example(item: Item, note: str = "") -> Example:
    assert isinstance(item.target, DepthFile)
    return Example((item.target.path,), note)


def _finding(kind: str, severity: str, examples: list[Example], what: str, advice: str) -> Finding | None:
    if not examples:
        return None
    one = what.replace("have ", "has ", 1).replace("are ", "is ", 1)
    title = counted(len(examples), f"depth map {one}", f"depth maps {what}")
    return Finding(kind, severity, title, advice, len(examples), tuple(examples))
