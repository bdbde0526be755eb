"""The page of `vitrail check`: one file that needs no other, good on a phone and in the dark."""

from __future__ import annotations

from vitrail.data.checks.check_dataset import CheckReport
from vitrail.findings import SEVERITIES
from vitrail.report.pages.rendering import made, render
from vitrail.report.sections.finding_cards import finding_cards
from vitrail.tasks.registry import task_data
from vitrail.text import counted, shown


def page(report: CheckReport) -> str:
    """The report as HTML. Names of files and classes are text, whatever they contain."""
    dataset = report.dataset
    return render(
        "check.html",
        report=report,
        name=shown((dataset.table or dataset.root.absolute()).name or dataset.root),
        subtitle=report.description,
        verdict=_verdict(report),
        tiles=_tiles(report),
        findings=finding_cards(report.findings, dataset.root),
        charts=task_data(dataset.task).charts(dataset, report.looks),
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
    labels = len(report.dataset.labels)
    what = task_data(report.dataset.task).label_noun
    counts = [counted(report.count(severity), severity) for severity in SEVERITIES]
    tiles = [counted(len(report.dataset.items), "image"), counted(labels, *what), *counts]
    first, *rest = [(number, noun) for number, _, noun in (tile.partition(" ") for tile in tiles)]
    return [first, (f"{len(report.broken):,}", "unreadable"), *rest]
