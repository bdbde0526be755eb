"""The bars on the page of `vitrail check`: what each class has in each part, or how numbers are spread."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from vitrail.dataset import SPLITS, Dataset
from vitrail.text import shown

BARS = 30  # rows that are shown at once; the rest unfolds


def bar_chart(title: str, rows: Sequence[Mapping[str, Any]], key: Sequence[Mapping[str, str]] = ()) -> dict[str, Any]:
    """A chart of rows by `bar` or `bar_by_part`. `key`: the colours of the parts (`parts_key`)."""
    return {"title": title, "key": key, "rows": rows[:BARS], "rest": rows[BARS:]}


def class_chart(dataset: Dataset, title: str) -> dict[str, Any]:
    """How often each class occurs in each part, the most frequent first."""
    by_split = {split: dataset.class_counts(split) for split in SPLITS}
    totals = dataset.class_counts()
    order = sorted(range(len(totals)), key=lambda number: -totals[number])
    rows = [bar_by_part(dataset.labels[n], {split: by_split[split][n] for split in SPLITS}, max(totals)) for n in order]
    return bar_chart(title, rows, parts_key(dataset))


def bar(name: str, share: float, number: str) -> dict[str, Any]:
    """A bar of one colour. `share` 0..1 of the longest."""
    parts = [{"split": "train", "width": f"{100 * share:.2f}"}] if share else []
    return {"name": shown(name), "parts": parts, "number": number}


def bar_by_part(name: str, counts: Mapping[str, int], largest: int) -> dict[str, Any]:
    """A bar with a piece for each part; the longest stands for `largest`."""
    parts = [
        {"split": split, "width": f"{100 * count / largest:.2f}"}
        for split, count in counts.items()
        if count and largest
    ]
    return {"name": shown(name), "parts": parts, "number": f"{sum(counts.values()):,}"}


def parts_key(dataset: Dataset) -> list[dict[str, str]]:
    return [{"split": split, "number": f"{count:,}"} for split in SPLITS if (count := len(dataset.part(split)))]
