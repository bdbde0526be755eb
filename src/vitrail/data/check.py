"""`vitrail check`: what is wrong with a set of images, before time is spent on training with it."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from vitrail.data.check_classes import check_classes
from vitrail.data.check_copies import check_copies
from vitrail.data.check_files import check_files, kind_of
from vitrail.data.collection import SPLITS, Collection
from vitrail.data.examine import Examined, examine
from vitrail.data.findings import SEVERITIES, Finding, by_weight
from vitrail.data.layouts import collect
from vitrail.data.names import counted, shown
from vitrail.data.split import FRACTION, hold_out
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

    @property
    def exit_code(self) -> int:
        """1 where something would spoil training."""
        return 1 if any(finding.severity == "error" for finding in self.findings) else 0

    @property
    def broken(self) -> frozenset[Path]:
        """The files that training leaves out."""
        return frozenset(one.path for one in self.examined if one.problem is not None)

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
        by_split = {split: collection.class_counts(split) for split in SPLITS}
        classes = [
            {"name": label, **{split: counts[number] for split, counts in by_split.items()}}
            for number, label in enumerate(collection.labels)
        ]
        return {
            "data": shown(collection.table or collection.root),
            "description": self.description,
            "layout": collection.layout,
            "task": collection.task,
            "images": len(collection.items),
            "parts": {split: len(collection.part(split)) for split in SPLITS},
            **({"targets": list(collection.labels)} if collection.task == "regress" else {"classes": classes}),
            **self.facts(),
            "fast": self.fast,
            "seconds": round(self.seconds, 3),
            "ok": self.exit_code == 0,
            "findings": [finding.to_dict(collection.root) for finding in self.findings],
        }

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
    fast: bool = False,
    fraction: float = FRACTION,
    seed: int = 0,
    workers: int | None = None,
    progress: Progress | None = None,
) -> CheckReport:
    """Look at every file of DATA and report what is broken, doubled, odd or unbalanced.

    fast: what `train` does first: headers and bytes only. No pixel is decoded, and no near copies are looked for.
    fraction, seed: of the split that training would make, where DATA has no validation part.
    """
    start = time.perf_counter()
    collection = data if isinstance(data, Collection) else collect(data, layout=layout, task=task, targets=targets)
    seen = in_threads(lambda path: examine(path, fast), [item.path for item in collection.items], workers, progress)
    digests = [one.digest or one.path.name.encode("utf-8", "surrogateescape") for one in seen]
    parted = hold_out(collection, fraction, seed, digests)
    automatic = not collection.has_validation
    findings = [
        *collection.findings,
        *check_files(seen),
        *check_copies(parted, seen, automatic),
        *check_classes(parted, seen, automatic),
    ]
    return CheckReport(
        collection=parted,
        description=collection.describe(fraction),
        findings=by_weight(findings),
        fast=fast,
        seconds=time.perf_counter() - start,
        examined=tuple(seen),
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
