"""The page of `vitrail check`: one file that needs no other, good on a phone and in the dark."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from vitrail.data.check import CheckReport
from vitrail.data.collection import SPLITS
from vitrail.data.findings import SEVERITIES
from vitrail.data.names import counted, shown
from vitrail.report.finding_cards import finding_cards
from vitrail.report.pages import made, render

BARS = 30  # classes that are shown at once; the rest unfolds
BINS = 12  # of a histogram of numbers


def page(report: CheckReport) -> str:
    """The report as HTML. Names of files and classes are text, whatever they contain."""
    collection = report.collection
    return render(
        "check.html",
        report=report,
        name=shown((collection.table or collection.root.absolute()).name or collection.root),
        subtitle=report.description,
        verdict=_verdict(report),
        tiles=_tiles(report),
        findings=finding_cards(report.findings, collection.root),
        charts=_charts(report),
        facts=[
            (title, [(what, f"{number:,}") for what, number in rows.items()])
            for title, rows in zip(("Types", "Kinds", "Most frequent sizes"), report.facts().values(), strict=True)
        ],
        made=f"{made()}; {report.summary()}.",
    )


def _verdict(report: CheckReport) -> str:
    if report.exit_code:
        return f"{counted(report.count('error'), 'error')} to mend before training."
    look = f"; {counted(report.count('warning'), 'warning')} to look at" if report.count("warning") else ""
    return f"Nothing here would spoil training{look}."


def _tiles(report: CheckReport) -> list[tuple[str, str]]:
    labels = len(report.collection.labels)
    what = ("number", None) if report.collection.task == "regress" else ("class", "classes")
    counts = [counted(report.count(severity), severity) for severity in SEVERITIES]
    tiles = [counted(len(report.collection.items), "image"), counted(labels, *what), *counts]
    first, *rest = [(number, noun) for number, _, noun in (tile.partition(" ") for tile in tiles)]
    return [first, (f"{len(report.broken):,}", "unreadable"), *rest]


# ---- charts


def _charts(report: CheckReport) -> list[dict[str, Any]]:
    task = report.collection.task
    if task == "regress":
        return _number_charts(report)
    if task == "segment":
        return [_pixel_chart(report)] if report.masks else []
    return [_class_chart(report, "Boxes of each class" if task == "detect" else "Images of each class")]


def _pixel_chart(report: CheckReport) -> dict[str, Any]:
    """How much of the masks each class has, the largest first."""
    shares = sorted(zip(report.collection.labels, report.pixel_shares(), strict=True), key=lambda one: -one[1])
    largest = max(share for _, share in shares) or 1.0
    rows = [
        {
            "name": shown(name),
            "parts": [{"split": "train", "width": f"{100 * share / largest:.2f}"}] if share else [],
            "number": f"{100 * share:.3g} %",
        }
        for name, share in shares
    ]
    return {"title": "Pixels of each class", "key": [], "rows": rows[:BARS], "rest": rows[BARS:]}


def _class_chart(report: CheckReport, title: str) -> dict[str, Any]:
    collection = report.collection
    by_split = {split: collection.class_counts(split) for split in SPLITS}
    totals = collection.class_counts()
    order = sorted(range(len(totals)), key=lambda number: -totals[number])
    rows = [_row(collection.labels[n], {split: by_split[split][n] for split in SPLITS}, max(totals)) for n in order]
    return {"title": title, "key": _key(report), "rows": rows[:BARS], "rest": rows[BARS:]}


def _number_charts(report: CheckReport) -> list[dict[str, Any]]:
    """A histogram of each number to predict."""
    charts = []
    for position, name in enumerate(report.collection.labels):
        values = {
            split: [item.target[position] for item in report.collection.part(split) if isinstance(item.target, tuple)]
            for split in SPLITS
        }
        charts.append({"title": f"Images by {name}", "key": _key(report), "rows": _bins(values), "rest": []})
    return charts


def _bins(values: dict[str, list[float]]) -> list[dict[str, Any]]:
    everything = [value for some in values.values() for value in some]
    low, high = min(everything), max(everything)
    step = (high - low) / BINS or 1.0

    def bin_of(value: float) -> int:
        return min(BINS - 1, int((value - low) / step))

    counts = [{split: sum(bin_of(value) == n for value in values[split]) for split in SPLITS} for n in range(BINS)]
    largest = max(sum(one.values()) for one in counts)
    return [_row(f"{low + n * step:.3g} to {low + (n + 1) * step:.3g}", counts[n], largest) for n in range(BINS)]


def _row(name: str, counts: dict[str, int], largest: int) -> dict[str, Any]:
    parts = [
        {"split": split, "width": f"{100 * count / largest:.2f}"}
        for split, count in counts.items()
        if count and largest
    ]
    return {"name": shown(name), "parts": parts, "number": f"{sum(counts.values()):,}"}


def _key(report: CheckReport) -> Sequence[dict[str, str]]:
    return [
        {"split": split, "number": f"{count:,}"} for split in SPLITS if (count := len(report.collection.part(split)))
    ]
