"""What is wrong or odd with masks, once every one of them has been read."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from vitrail.dataset import Dataset, Item
from vitrail.findings import Example, Finding
from vitrail.images.unreadable import UnreadableImage
from vitrail.tasks.dense_options import IGNORE
from vitrail.tasks.segment.mask_files import Mask
from vitrail.tasks.task_data import TargetLook
from vitrail.text import counted, listing

RARE = 0.001  # share of the pixels below which a class is learnt with difficulty


@dataclass(frozen=True)
class MaskLook(TargetLook):
    """What one mask holds: pixels by class number, IGNORE among them."""

    counts: NDArray[np.int64] = field(default_factory=lambda: np.zeros(256, dtype=np.int64))


def look_at_mask(item: Item) -> MaskLook | None:
    """None where there is no mask."""
    if not isinstance(item.target, Mask):
        return None
    try:
        return MaskLook(counts=np.bincount(item.target.read().ravel(), minlength=256))
    except UnreadableImage as error:
        return MaskLook(problem=error)


def pixel_shares(looks: Sequence[TargetLook | None], classes: int) -> list[float]:
    """The share of each class in all pixels that are learnt; empty where no mask was read."""
    if not looks:
        return []
    counts = [look.counts[:classes] for look in looks if isinstance(look, MaskLook)]
    total = sum(counts, np.zeros(classes, dtype=np.int64))
    return (total / max(1, int(total.sum()))).tolist()


def check_masks(dataset: Dataset, looks: Sequence[TargetLook | None]) -> list[Finding]:
    """`looks` in the order of the dataset's items; empty after a fast check, which reads no mask."""
    if not looks:
        return []
    pairs = [(item, look) for item, look in zip(dataset.items, looks, strict=True) if isinstance(look, MaskLook)]
    whole = [look for _, look in pairs if look.problem is None]
    findings = [_unknown(pairs), _broken(pairs), _all_ignored(pairs)]
    if 2 * len(whole) > len(pairs):  # else what is absent may be in those that cannot be used
        findings += [*_absent(dataset, pairs), _shares(dataset, whole)]
    return [finding for finding in findings if finding is not None]


Pairs = Sequence[tuple[Item, MaskLook]]


def _unknown(pairs: Pairs) -> Finding | None:
    """Values that are no class, by what the masks say of them: mostly it is one value in all."""
    examples = _with_problem(pairs, "unknown class", True)
    if not examples:
        return None
    reasons = Counter(example.note for example in examples).most_common()
    what, _, advice = reasons[0][0].partition(": ")
    each = "it" if len(examples) == 1 else "each" if len(reasons) == 1 else "most often one"
    title = f"{counted(len(examples), 'mask')} cannot be used: {each} {what}"
    return Finding("unknown-class-index", "error", title, f"{advice}; they are left out", len(examples), examples)


def _broken(pairs: Pairs) -> Finding | None:
    examples = _with_problem(pairs, "unknown class", False)
    title = f"{counted(len(examples), 'mask')} cannot be read"
    advice = "mend them; they are left out"
    return Finding("broken-masks", "error", title, advice, len(examples), examples) if examples else None


def _with_problem(pairs: Pairs, kind: str, of_it: bool) -> tuple[Example, ...]:
    return tuple(
        Example((item.target.path,), look.problem.why)
        for item, look in pairs
        if isinstance(item.target, Mask) and look.problem is not None and (look.problem.kind == kind) == of_it
    )


def _all_ignored(pairs: Pairs) -> Finding | None:
    empty = [
        Example((item.path,)) for item, look in pairs if look.problem is None and not look.counts[:IGNORE].any()
    ]  # fmt: skip
    if not empty:
        return None
    title = f"{counted(len(empty), 'mask has', 'masks have')} nothing to learn: every pixel is ignored"
    return Finding("all-ignored", "warning", title, "draw them, or remove them", len(empty), tuple(empty))


def _absent(dataset: Dataset, pairs: Pairs) -> list[Finding]:
    """Classes that no mask has, or no mask to learn from."""
    seen = np.zeros(256, dtype=np.int64)
    learnt = np.zeros(256, dtype=np.int64)
    for item, look in pairs:
        seen += look.counts
        learnt += look.counts if (item.split or "train") == "train" else 0
    labels = list(enumerate(dataset.labels))
    never = [name for number, name in labels if not seen[number]]
    unlearnt = [name for number, name in labels if seen[number] and not learnt[number]]
    findings = []
    if unlearnt:
        title = f"{counted(len(unlearnt), 'class is', 'classes are')} in no training mask: {listing(unlearnt, 5)}"
        advice = "add masks with it to train: it cannot be learnt"
        findings.append(Finding("class-not-in-train", "error", title, advice, len(unlearnt)))
    if never:
        title = f"{counted(len(never), 'class is', 'classes are')} in no mask: {listing(never, 5)}"
        advice = "remove it from the names, or look whether the indices are right"
        findings.append(Finding("class-never-there", "warning", title, advice, len(never)))
    return findings


def _shares(dataset: Dataset, looks: Sequence[MaskLook]) -> Finding | None:
    """A warning where a class has hardly any pixels, else a note on how many each has."""
    shares = pixel_shares(looks, len(dataset.labels))
    order = sorted(range(len(shares)), key=lambda number: -shares[number])
    if not any(shares):
        return None
    named = [f"{dataset.labels[number]} {100 * shares[number]:.3g} %" for number in order]
    rare = [named[place] for place, number in enumerate(order) if 0 < shares[number] < RARE]
    if rare:
        title = f"{counted(len(rare), 'class has', 'classes have')} hardly any pixels: {listing(rare, 5)}"
        advice = "add images that show it, and judge by the mean over classes"
        return Finding("rare-classes", "warning", title, advice, len(rare))
    title = f"pixels by class: {listing(named, 12)}"
    return Finding("class-shares", "note", title, "nothing to do: good to know", len(named))
