"""Which explanation to trust: deletion and insertion curves as charts and a table."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from vitrail.explanation.methods.faithfulness import Curves, best_of
from vitrail.explanation.output.explanation_text import verdict
from vitrail.explanation.output.result import METHODS
from vitrail.visuals.charts import Axis, Chart, Mark, axis, line, percentages, shares


def trust_section(curves: Mapping[str, Curves]) -> dict[str, Any]:
    order = sorted(curves, key=lambda name: -curves[name].score)
    best = best_of(curves)
    rows = [
        {
            "name": METHODS[name],
            "deletion": f"{curves[name].deletion_area:.3f}",
            "insertion": f"{curves[name].insertion_area:.3f}",
            "score": f"{curves[name].score:.3f}",
            "best": name == best,
        }
        for name in order
    ]
    charts = [
        _chart("Deletion: the fastest fall is best", "patches hidden", curves, "deletion"),
        _chart("Insertion: the fastest rise is best", "patches shown", curves, "insertion"),
    ]
    return {"rows": rows, "charts": charts, "verdict": verdict(curves)}


def _chart(title: str, across: str, curves: Mapping[str, Curves], which: str) -> Chart:
    """Every method has its colour, in the order of METHODS, whatever is shown."""
    values = [value for one in curves.values() for value in getattr(one, which)]
    x, y = shares(across), _axis(values)
    styles = {name: f"method-{number}" for number, name in enumerate(METHODS)}
    marks = [
        Mark(line(zip(one.shares, getattr(one, which), strict=True), x, y), styles[name], METHODS[name])
        for name, one in sorted(curves.items(), key=lambda pair: -list(METHODS).index(pair[0]))
    ]
    key = [(styles[name], METHODS[name]) for name in METHODS if name in curves]
    return Chart(title, x, y, marks, key)


def _axis(values: list[float]) -> Axis:
    if min(values) >= -1e-6 and max(values) <= 1 + 1e-6:
        return Axis("answer", 0.0, 1.0, tuple((value / 4, percentages(value / 4)) for value in range(5)))
    return axis("answer, as a share of its way", values)
