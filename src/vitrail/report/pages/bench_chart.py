"""`vitrail bench --plot`: images a second as bars, a group a batch size, as one SVG file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from vitrail.report.pages.rendering import render
from vitrail.visuals.charts import HEIGHT, Axis, Chart, Mark, axis, bars
from vitrail.visuals.palette import FIRST

GAP = 1.0  # between two groups, in widths of a bar


def bench_chart(rows: Sequence[Mapping[str, Any]], model: str, machine: str) -> str:
    """The SVG. rows: as `vitrail.bench` gives them."""
    engines = list(dict.fromkeys((row["engine"], row["precision"]) for row in rows))
    batches = sorted({row["batch"] for row in rows})
    step = len(engines) + GAP
    x = Axis("", 0.0, step * len(batches) - GAP, tuple(_group(n, step, batch) for n, batch in enumerate(batches)))
    y = axis("images a second", [0.0, *(row["images_per_second"] for row in rows)])
    marks = []
    for number, engine in enumerate(engines):
        own = [row for row in rows if (row["engine"], row["precision"]) == engine]
        places = [(step * batches.index(row["batch"]) + number, row["images_per_second"]) for row in own]
        marks.append(Mark(bars([(at, at + 1, value) for at, value in places], x, y), f"bar{number}", " ".join(engine)))
    chart = Chart("", x, y, marks)
    key = [(colour_of(number), " ".join(engine)) for number, engine in enumerate(engines)]
    return render("bench.svg", chart=chart, model=model, machine=machine, key=key, top=HEIGHT)


def colour_of(number: int) -> str:
    """The colour of a bar."""
    return FIRST[number % len(FIRST)]


def _group(number: int, step: float, batch: int) -> tuple[float, str]:
    return step * number + (step - GAP) / 2, f"batch {batch}"
