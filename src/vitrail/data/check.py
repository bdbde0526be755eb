"""`vitrail check`: what is wrong with a set of images, before time is spent on training with it."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from vitrail.data.check_boxes import check_boxes
from vitrail.data.check_classes import check_classes
from vitrail.data.check_copies import check_copies
from vitrail.data.check_files import check_files, kind_of
from vitrail.data.check_masks import MaskLook, check_masks, look_at_mask, pixel_shares
from vitrail.data.collection import SPLITS, Collection, Item
from vitrail.data.dense_options import DenseOptions
from vitrail.data.examine import Examined, examine
from vitrail.data.findings import SEVERITIES, Finding, by_weight
from vitrail.data.layouts import collect
from vitrail.data.names import counted, shown
from vitrail.data.split import hold_out
from vitrail.data.threads import Progress, in_threads

_IN_TEXT = 5  # examples that the text shows of each finding


@dataclass(frozen=True)
class CheckReport:
    """What was found. `str()` is the text, `to_dict()` the JSON, `vitrail.report.check_page.page()` the page."""

    collection: Collection  # every item in the part that training would put it into
    description: str  # the line that says what the data was taken as
    findings: tuple[Finding, ...]  # gravest first
    fast: bool
    seconds: float
    examined: tuple[Examined, ...] = field(repr=False)  # in the order of the collection's items
    masks: tuple[MaskLook | None, ...] = field(default=(), repr=False)  # likewise; empty after a fast look

    @property
    def exit_code(self) -> int:
        """1 where something would spoil training."""
        return 1 if any(finding.severity == "error" for finding in self.findings) else 0

    @property
    def broken(self) -> frozenset[Path]:
        """The files that training leaves out."""
        broken = {one.path for one in self.examined if one.problem is not None}
        masks = zip(self.collection.items, self.masks, strict=False)
        return frozenset(broken | {item.path for item, look in masks if look is not None and look.problem is not None})

    @property
    def digests(self) -> list[bytes]:
        """Of the items' bytes, for `split.hold_out`, which need not read the files again."""
        return [one.digest for one in self.examined]

    def count(self, severity: str) -> int:
        return sum(finding.severity == severity for finding in self.findings)

    def facts(self) -> dict[str, dict[str, int]]:
        """How many images of each type, kind and size; the most frequent first, of sizes the first ten."""
        known = [one.facts for one in self.examined if one.facts is not None]
        return {
            "types": dict(Counter(facts.format for facts in known).most_common()),
            "kinds": dict(Counter(kind_of(facts) for facts in known).most_common()),
            "sizes": dict(Counter(f"{facts.width} x {facts.height}" for facts in known).most_common(10)),
        }

    def to_dict(self) -> dict[str, Any]:
        collection = self.collection
        return {
            "data": shown(collection.table or collection.root),
            "description": self.description,
            "layout": collection.layout,
            "task": collection.task,
            "images": len(collection.items),
            "parts": {split: len(collection.part(split)) for split in SPLITS},
            **({"targets": list(collection.labels)} if collection.task == "regress" else {"classes": self._classes()}),
            **self.facts(),
            "fast": self.fast,
            "seconds": round(self.seconds, 3),
            "ok": self.exit_code == 0,
            "findings": [finding.to_dict(collection.root) for finding in self.findings],
        }

    def _classes(self) -> list[dict[str, Any]]:
        """Of each class its images in each part, or its boxes; of masks that were read, its share of the pixels."""
        labels = self.collection.labels
        if self.collection.task == "segment":
            shares = self.pixel_shares()
            return [{"name": label, **({"pixels": shares[n]} if shares else {})} for n, label in enumerate(labels)]
        counts = {split: self.collection.class_counts(split) for split in SPLITS}
        return [{"name": label, **{split: counts[split][n] for split in SPLITS}} for n, label in enumerate(labels)]

    def pixel_shares(self) -> list[float]:
        """Of each class in the masks, in the order of the labels; empty where none was read."""
        return pixel_shares(self.masks, len(self.collection.labels)) if self.masks else []

    def __str__(self) -> str:
        return "\n".join([self.description, self.summary(), *(_as_text(one, self) for one in self.findings)])

    def summary(self) -> str:
        """How much was looked at, and the verdict."""
        how = "looked at the headers of" if self.fast else "decoded"
        numbers = ", ".join(counted(self.count(s), s) for s in SEVERITIES if self.count(s)) or "nothing to say"
        verdict = "; mend the errors before training" if self.exit_code else ""
        return f"{how} {counted(len(self.examined), 'file')} in {self.seconds:.1f} s: {numbers}{verdict}"


def check(
    data: str | Path | Collection,
    *,
    layout: str | None = None,
    task: str | None = None,
    targets: Sequence[str] | None = None,
    dense: DenseOptions | None = None,
    fast: bool = False,
    fraction: float | None = None,
    seed: int = 0,
    workers: int | None = None,
    progress: Progress | None = None,
) -> CheckReport:
    """Look at every file of DATA and report what is broken, doubled, odd or unbalanced.

    dense: what is not found by itself about masks and boxes.
    fast: what `train` does first: headers and bytes only. No pixel is decoded, and no near copies are looked for.
    fraction (None: the usual one), seed: of the split that training would make, where DATA has no validation part.
    """
    start = time.perf_counter()
    collection = data
    if not isinstance(collection, Collection):
        collection = collect(collection, layout=layout, task=task, targets=targets, dense=dense)

    def look(item: Item) -> tuple[Examined, MaskLook | None]:
        return examine(item.path, fast), None if fast else look_at_mask(item)

    looks = in_threads(look, collection.items, workers, progress)
    seen = [one for one, _ in looks]
    masks = [mask for _, mask in looks] if collection.task == "segment" and not fast else []
    digests = [one.digest or one.path.name.encode("utf-8", "surrogateescape") for one in seen]
    parted = hold_out(collection, fraction, seed, digests)
    automatic = not collection.has_validation
    exact = check_masks(parted, masks)
    known = {finding.kind for finding in exact}
    findings = [
        *(finding for finding in collection.findings if finding.kind not in known),  # some are of a sample only
        *check_files(seen),
        *check_copies(parted, seen, automatic),
        *check_classes(parted, seen, automatic, known),
        *check_boxes(parted),
        *exact,
    ]
    return CheckReport(
        collection=parted,
        description=collection.describe(fraction),
        findings=by_weight(findings),
        fast=fast,
        seconds=time.perf_counter() - start,
        examined=tuple(seen),
        masks=tuple(masks),
    )


def _as_text(finding: Finding, report: CheckReport) -> str:
    lines = [f"\n{finding.severity:8} {finding.title}", f"         -> {finding.advice}"]
    for example in finding.examples[:_IN_TEXT]:
        files = [shown(file, report.collection.root) for file in example.files]
        names = " = ".join(files[:4]) + (f" and {len(files) - 4} more" if len(files) > 4 else "")
        lines.append("         " + (f"{names}  {example.note}" if example.note else names))
    if len(finding.examples) > _IN_TEXT:
        lines.append(f"         and {len(finding.examples) - _IN_TEXT:,} more")
    return "\n".join(lines)
