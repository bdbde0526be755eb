"""What the outputs of `check` say together: findings over all shards, in memory that does not grow but by 8 bytes an
image."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vitrail.findings import Finding
from vitrail.shards.json_lines import JsonLines
from vitrail.shards.run_job import JobResult
from vitrail.text import counted, listing, shown

EXAMPLES = 5

Rows = Callable[[], Iterable[dict[str, Any]]]  # called again, it begins again


@dataclass(frozen=True)
class CheckSummary:
    """Findings with their first few examples, and what the images are."""

    images: int
    findings: tuple[Finding, ...]
    facts: dict[str, dict[str, int]]
    examples: dict[str, list[str]]  # of each kind of finding

    @property
    def exit_code(self) -> int:
        """1 where something would spoil training."""
        return 1 if any(finding.severity == "error" for finding in self.findings) else 0

    def to_dict(self) -> dict[str, Any]:
        """As JSON has it."""
        findings = [
            {"kind": one.kind, "severity": one.severity, "title": one.title, "advice": one.advice, "count": one.count}
            | {"examples": self.examples[one.kind]}
            for one in self.findings
        ]
        return {"images": self.images, "ok": self.exit_code == 0, **self.facts, "findings": findings}

    def __str__(self) -> str:
        lines = [
            f"looked at {counted(self.images, 'image')}: {_most(self.facts['types'])}; {_most(self.facts['sizes'])}"
        ]
        for finding in self.findings:
            lines += [f"\n{finding.severity:8} {finding.title}", f"         -> {finding.advice}"]
            lines += [f"         {shown(example)}" for example in self.examples[finding.kind]]
            more = finding.count - len(self.examples[finding.kind])
            lines += [f"         and {more:,} more"] if more > 0 else []
        return "\n".join(lines)


def summarise(result: JobResult) -> CheckSummary:
    """Of the shards of a job, or of its part."""

    def rows() -> Iterator[dict[str, Any]]:
        for shard in result.shards:
            path = result.folder.file(shard.number, shard.digest)
            yield from JsonLines.rows(path, result.folder.stamp(shard.digest))

    return summary_of(rows)


def summary_of(rows: Rows) -> CheckSummary:
    """Two passes: over all rows, and for the names of copies."""
    kinds, types, sizes = Counter[str](), Counter[str](), Counter[str]()
    examples: dict[str, list[str]] = {"broken": [], "blank": [], "turned": [], "several-frames": []}
    counts, images = Counter[str](), 0
    digests = _Digests()
    for row in rows():
        images += 1
        noticed = _noticed(row)
        for kind, example in noticed:
            counts[kind] += 1
            if len(examples[kind]) < EXAMPLES:
                examples[kind].append(example)
        if "error" in row:
            kinds[row["kind"]] += 1
            continue
        types[row["format"]] += 1
        if len(sizes) < 100_000:  # photos have few sizes; crops by the million may each have their own
            sizes[f"{row['width']} x {row['height']}"] += 1
        digests.add(row["digest"])
    repeated, copies = digests.repeated()
    examples["copies"] = _names_of_copies(rows, repeated)
    counts["copies"] = copies
    facts = {"types": dict(types.most_common()), "sizes": dict(sizes.most_common(10))}
    return CheckSummary(images, tuple(_findings(counts, kinds)), facts, examples)


def _noticed(row: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """(kind, example) of all that is odd with one image."""
    name = row["image"]
    if "error" in row:
        yield "broken", row["error"]
        return
    if row.get("blank"):
        yield "blank", name
    if row["orientation"] != 1:
        yield "turned", f"{name}  orientation {row['orientation']}"
    if row["frames"] > 1 and row["format"] in ("GIF", "PNG", "WEBP", "AVIF", "TIFF"):
        yield "several-frames", f"{name}  {counted(row['frames'], 'frame')}"


def _findings(counts: Counter[str], kinds: Counter[str]) -> Iterator[Finding]:
    broken = f"{counted(counts['broken'], 'file')} cannot be read ({_most(kinds)})"
    blank = f"{counted(counts['blank'], 'image is', 'images are')} of one colour all over"
    copies = f"{counted(counts['copies'], 'image is', 'images are')} the same file as an earlier one, byte for byte"
    turned = f"{counted(counts['turned'], 'photo is', 'photos are')} stored turned or mirrored (EXIF orientation)"
    frames = f"{counted(counts['several-frames'], 'file has', 'files have')} several frames or pages"
    every = [
        ("broken", "error", broken, "replace or remove them; training leaves them out"),
        ("blank", "warning", blank, "remove what shows nothing"),
        ("copies", "warning", copies, "remove the copies, or keep all of one picture in one part"),
        ("turned", "note", turned, "nothing to do: they are put upright whenever they are read"),
        ("several-frames", "note", frames, "the first is used, except for models of many channels"),
    ]
    for kind, severity, title, advice in every:
        if counts[kind]:
            yield Finding(kind, severity, title, advice, counts[kind])


class _Digests:
    """The first 8 bytes of each image's digest, in blocks of numbers: objects would take ten times as much."""

    def __init__(self) -> None:
        self._blocks: list[NDArray[np.uint64]] = []
        self._some: list[int] = []

    def add(self, digest: str) -> None:
        self._some.append(int(digest[:16], 16))
        if len(self._some) == 1 << 16:
            self._pack()

    def repeated(self) -> tuple[set[int], int]:
        """Those that occur more than once, the first few of them, and how many images are copies of an earlier one."""
        self._pack()
        values = np.concatenate(self._blocks) if self._blocks else np.empty(0, np.uint64)
        self._blocks = []
        values.sort()
        same = values[1:] == values[:-1]
        return set(np.unique(values[1:][same])[:EXAMPLES].tolist()), int(same.sum())

    def _pack(self) -> None:
        self._blocks.append(np.array(self._some, np.uint64))
        self._some = []


def _names_of_copies(rows: Rows, repeated: set[int]) -> list[str]:
    if not repeated:
        return []
    names: dict[int, list[str]] = {}
    for row in rows():
        if "digest" in row and (value := int(row["digest"][:16], 16)) in repeated:
            names.setdefault(value, []).append(row["image"])
    return [" = ".join(itertools.islice(group, 4)) for group in names.values()]


def _most(counts: dict[str, int] | Counter[str]) -> str:
    return listing([f"{number:,} {name}" for name, number in Counter(counts).most_common()], 3)
