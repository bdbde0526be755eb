"""Regression's part of the page: for each number the answers against the truth, the errors, and the largest misses."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from vitrail.tasks.report_part import MeasuredImages, ReportPart
from vitrail.tasks.shared.metric_words import NUMBER_METRICS, interval_text
from vitrail.tasks.shared.mistakes import mistakes
from vitrail.visuals.charts import Chart, Mark, axis, bars, dots, line

SHOWN = 6  # numbers that are shown at once; the rest unfolds
BINS = 21  # odd, so that one is about zero
TALL = 300.0
DENSE = 200  # points from which on they are drawn small
_QUANTILES = {"0": "lowest", "0.5": "median", "1": "highest"}


def number_report(results: Mapping[str, Any], images: MeasuredImages, show: Callable[[str, float], str]) -> ReportPart:
    cards = [_card(row, results, images, show) for row in results["per_label"]]
    note = f"Means over the {len(cards)} numbers, whatever their units; each one has its own below."
    values = {"cards": cards[:SHOWN], "rest": cards[SHOWN:]}
    return ReportPart("number_report.html", values, metrics_note=note if len(cards) > 1 else "")


def _card(
    row: Mapping[str, Any], results: Mapping[str, Any], images: MeasuredImages, show: Callable[[str, float], str]
) -> dict[str, Any]:
    drawn = len(row["points"])
    worst = [one for one in results["worst"] if one["label"] == row["label"]]
    return {
        "name": row["label"],
        "scores": [
            (NUMBER_METRICS[name].title, show(name, row[name]), interval_text(name, row["intervals"], show))
            for name in ("R2", "MAE", "RMSE")
        ]
        + [("Bias", f"{row['bias']:+.4g}", "")],
        "charts": [_scatter(row["points"]), _errors(row["points"])] if drawn else [],
        "note": f"The charts show {drawn:,} of {results['images']:,} images, drawn at random."
        if drawn < results["images"]
        else "",
        "quantiles": [
            (_QUANTILES.get(share, f"{100 * float(share):g} %"), f"{error:+.4g}")
            for share, error in row["residual_quantiles"].items()
        ],
        "mistakes": mistakes(worst, images),
    }


def _scatter(points: Sequence[Sequence[float]]) -> Chart:
    everything = [value for point in points for value in point]
    x, y = axis("true", everything), axis("predicted", everything)
    ends = [(x.low, x.low), (x.high, x.high)]
    size = "small" if len(points) >= DENSE else "large"
    marks = [
        Mark(dots(((true, predicted) for true, predicted in points), x, y, TALL), f"dots points {size}"),
        Mark(line(ends, x, y, TALL), "line ideal"),
    ]
    return Chart("Predicted against true", x, y, marks, [("train", "an image"), ("ideal", "perfect")], height=TALL)


def _errors(points: Sequence[Sequence[float]]) -> Chart:
    """A histogram about zero."""
    errors = np.asarray(points)[:, 1] - np.asarray(points)[:, 0]
    reach = float(np.abs(errors).max()) or 1.0
    counts, edges = np.histogram(errors, bins=BINS, range=(-reach, reach))
    x = axis("predicted - true", [-reach, reach])
    y = axis("images", [0, int(counts.max())], count=4, whole=True)
    tops = [(low, high, count) for low, high, count in zip(edges, edges[1:], counts, strict=False) if count]
    zero = line([(0.0, y.low), (0.0, y.high)], x, y, TALL)
    marks = [Mark(bars(tops, x, y, TALL), "area train"), Mark(zero, "line ideal")]
    return Chart("Errors", x, y, marks, height=TALL)
