"""What is wrong with a set of images, before time is spent on training with it."""

from __future__ import annotations

import functools
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from vitrail.data.checks.copy_checks import check_copies
from vitrail.data.checks.examine import Examined, examine
from vitrail.data.checks.file_checks import check_files
from vitrail.data.checks.placeholder_checks import check_placeholders, find_placeholders
from vitrail.data.description import describe, obstacles
from vitrail.data.loading.split import digest_name, hold_out
from vitrail.dataset import SPLITS, Dataset, Item
from vitrail.findings import SEVERITIES, Finding, by_weight
from vitrail.images.decode import kind_of
from vitrail.progress import Progress
from vitrail.tasks.registry import task_data
from vitrail.tasks.task_data import ExaminedItems, TargetLook
from vitrail.text import counted, shown
from vitrail.threads import in_threads

_IN_TEXT = 5  # examples that the text shows of each finding


@dataclass(frozen=True)
class CheckReport:
    """What was found. `str()` is the text, `to_dict()` the JSON, `vitrail.report.pages.check_page.page()` the page."""

    dataset: Dataset  # every item in the part that training would put it into
    description: str  # the line that says what the data was taken as
    findings: tuple[Finding, ...]  # gravest first
    fast: bool
    seconds: float
    examined: tuple[Examined, ...] = field(repr=False)  # in the order of the dataset's items
    looks: tuple[TargetLook | None, ...] = field(default=(), repr=False)  # of the targets; empty after a fast check
    label_errors: tuple[dict[str, Any], ...] | None = None  # of `check --model`, worst first; None: nobody asked

    @property
    def exit_code(self) -> int:
        """1 where something would spoil training."""
        return 1 if any(finding.severity == "error" for finding in self.findings) else 0

    @functools.cached_property
    def broken(self) -> frozenset[Path]:
        """The files that training leaves out. Found once, for each image is looked up in it."""
        broken = {one.path for one in self.examined if one.problem is not None}
        looks = zip(self.dataset.items, self.looks, strict=False)
        return frozenset(broken | {item.path for item, look in looks if look is not None and look.problem is not None})

    @property
    def digests(self) -> list[bytes]:
        """Of the items' bytes, for `split.hold_out`, which need not read the files again."""
        return _digests(self.dataset, self.examined)

    def count(self, severity: str) -> int:
        """How many findings have this severity."""
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
        """The report as `vitrail check --json` prints it."""
        dataset = self.dataset
        return {
            "data": shown(dataset.address),
            "description": self.description,
            "layout": dataset.layout,
            "task": dataset.task,
            "images": len(dataset.items),
            "parts": {split: len(dataset.part(split)) for split in SPLITS},
            **task_data(dataset.task).summary(dataset, self.looks),
            **self.facts(),
            "fast": self.fast,
            "seconds": round(self.seconds, 3),
            "ok": self.exit_code == 0,
            "findings": [finding.to_dict(dataset.root) for finding in self.findings],
            **({} if self.label_errors is None else {"label_errors": list(self.label_errors)}),
        }

    def __str__(self) -> str:
        return "\n".join([self.description, self.summary(), *(_as_text(one, self) for one in self.findings)])

    def summary(self) -> str:
        """How much was looked at, and the verdict."""
        action = "looked at the headers of" if self.fast else "decoded"
        numbers = ", ".join(counted(self.count(s), s) for s in SEVERITIES if self.count(s)) or "nothing to say"
        verdict = "; mend the errors before training" if self.exit_code else ""
        return f"{action} {counted(len(self.examined), 'file')} in {self.seconds:.1f} s: {numbers}{verdict}"


def check_dataset(
    dataset: Dataset,
    *,
    fast: bool = False,
    fraction: float | None = None,
    seed: int = 0,
    workers: int | None = None,
    progress: Progress | None = None,
) -> CheckReport:
    """Look at every file and report what is broken, doubled, odd or unbalanced.

    fast: what `train` does first: headers and bytes only. No pixel is decoded, and no near copies are looked for.
    fraction (None: the usual one), seed: of the split that training would make, where there is no validation part.
    """
    start = time.perf_counter()
    data_of_task = task_data(dataset.task)

    def look(item: Item) -> tuple[Examined, TargetLook | None]:
        return examine(item.source, fast), None if fast else data_of_task.look(item)

    pairs = in_threads(look, dataset.items, workers, progress)
    examined = [image for image, _ in pairs]
    looks = [target for _, target in pairs] if any(target is not None for _, target in pairs) else []
    parted = hold_out(dataset, fraction, seed, _digests(dataset, examined))
    return CheckReport(
        dataset=parted,
        description=describe(dataset, fraction),
        findings=_findings(dataset, parted, examined, looks),
        fast=fast,
        seconds=time.perf_counter() - start,
        examined=tuple(examined),
        looks=tuple(looks),
    )


def _digests(dataset: Dataset, examined: Sequence[Examined]) -> list[bytes]:
    """As `split.digest_files` gives them."""
    pairs = zip(dataset.items, examined, strict=True)
    return [image.digest or digest_name(item.source) for item, image in pairs]


def _findings(
    dataset: Dataset, parted: Dataset, examined: Sequence[Examined], looks: Sequence[TargetLook | None]
) -> tuple[Finding, ...]:
    """Gravest first. `dataset` as it was read, `parted` with every item in a part, in whose order the rest is."""
    automatic = not dataset.has_validation
    facts = [image.facts for image in examined]
    of_targets = task_data(dataset.task).check(parted, ExaminedItems(facts, looks, automatic))
    exact = {finding.kind for finding in of_targets}  # what the reader found of this is of a sample only
    reader = [finding for finding in dataset.findings if finding.kind not in exact]
    known = exact | {finding.kind for finding in reader}
    placeholders = find_placeholders(parted, examined)
    return by_weight(
        [
            *reader,
            *check_files(examined),
            *check_placeholders(parted, placeholders),
            *check_copies(parted, examined, automatic, placeholders.indices),
            *(finding for finding in obstacles(parted) if finding.kind not in known),
            *of_targets,
        ]
    )


def _as_text(finding: Finding, report: CheckReport) -> str:
    lines = [f"\n{finding.severity:8} {finding.title}", f"         -> {finding.advice}"]
    for example in finding.examples[:_IN_TEXT]:
        files = [shown(file, report.dataset.root) for file in example.files]
        names = " = ".join(files[:4]) + (f" and {len(files) - 4} more" if len(files) > 4 else "")
        lines.append("         " + (f"{names}  {example.note}" if example.note else names))
    if len(finding.examples) > _IN_TEXT:
        lines.append(f"         and {len(finding.examples) - _IN_TEXT:,} more")
    return "\n".join(lines)
