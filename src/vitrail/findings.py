"""What was noticed about a set of images: each thing once, with its weight, its files and what to do about it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vitrail.text import shown

# error: training on this, or the score it ends with, would be wrong. warning: worth a look. note: good to know.
SEVERITIES = ("error", "warning", "note")


@dataclass(frozen=True, slots=True)
class Example:
    """One file, or several that belong together (a duplicate and its original), and a word on them."""

    files: tuple[Path, ...] = ()
    note: str = ""


@dataclass(frozen=True, slots=True)
class Finding:
    """One kind of thing that was noticed, with all files that have it."""

    kind: str  # for programs: never changes
    severity: str
    title: str  # what: "3 files cannot be read"
    advice: str  # what to do, one sentence
    count: int
    examples: tuple[Example, ...] = ()  # all of them; who shows them shows the first few

    def __post_init__(self) -> None:  # they quote names of classes and columns, which may hold a newline
        object.__setattr__(self, "title", shown(self.title))
        object.__setattr__(self, "advice", shown(self.advice))

    def to_dict(self, root: Path) -> dict[str, Any]:
        """As JSON has it; files are named from `root` on."""
        return {
            "kind": self.kind,
            "severity": self.severity,
            "title": self.title,
            "advice": self.advice,
            "count": self.count,
            "examples": [
                {"files": [shown(file, root) for file in example.files], "note": example.note}
                for example in self.examples
            ],
        }


def about_files(kind: str, severity: str, title: str, advice: str, files: Sequence[Path | Example]) -> list[Finding]:
    """One finding that counts these files or examples; none where there are none."""
    examples = tuple(file if isinstance(file, Example) else Example((file,)) for file in files)
    return [Finding(kind, severity, title, advice, len(examples), examples)] if examples else []


def single(files: Iterable[Path]) -> tuple[Example, ...]:
    """Each file as an example of its own."""
    return tuple(Example((file,)) for file in files)


def by_weight(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """Errors first, then warnings, then notes; each in the order in which they were found."""
    return tuple(sorted(findings, key=lambda finding: SEVERITIES.index(finding.severity)))
