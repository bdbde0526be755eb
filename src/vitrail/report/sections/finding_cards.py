"""Findings of the data check as the pages show them: a card each, with pictures where pictures tell more than names."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from vitrail.findings import Example, Finding
from vitrail.text import shown
from vitrail.visuals.thumbnails import thumbnail

EXAMPLES = 12  # of each finding
LINES = 40  # where there are only names to show
FILES = 4  # of each example
MORE = {"label-errors": 4}  # times as many examples, where each is to be looked at
_WITHOUT_PICTURES = ("broken", "missing", "other-files")


def finding_cards(
    findings: Sequence[Finding], root: Path, *, examples: int = EXAMPLES, pictured: int | None = None
) -> list[dict[str, Any]]:
    """examples: how many pictures, or groups of them, a finding shows. pictured: how many findings show any."""
    return [
        _card(finding, root, examples, finding.kind not in _WITHOUT_PICTURES and (pictured is None or place < pictured))
        for place, finding in enumerate(findings)
    ]


def _card(finding: Finding, root: Path, examples: int, pictures: bool) -> dict[str, Any]:
    limit = examples * MORE.get(finding.kind, 1) if pictures else max(examples, LINES * examples // EXAMPLES)
    return {
        "severity": finding.severity,
        "title": finding.title,
        "advice": finding.advice,
        "pictures": pictures,
        "examples": [_example(example, root, pictures) for example in finding.examples[:limit]],
        "more": f"{more:,}" if (more := max(0, len(finding.examples) - limit)) else "",
    }


def _example(example: Example, root: Path, pictures: bool) -> dict[str, Any]:
    hidden = len(example.files) - FILES
    remark = ", ".join(filter(None, [example.note, f"and {hidden:,} more files" if hidden > 0 else ""]))
    files = [
        {"name": shown(file, root), "picture": thumbnail(file) if pictures else None} for file in example.files[:FILES]
    ]
    return {"files": files, "remark": remark}
