"""Whether the probabilities can be believed: the reliability diagram, and how many answers stand behind it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from vitrail.data.names import counted
from vitrail.report.charts import Chart, Mark, axis, bars, dots, line, shares

TALL, SHORT = 300.0, 140.0  # of the diagram and of the counts below it
SURE = 1.96  # standard deviations: 95 %


def reliability_section(results: Mapping[str, Any]) -> dict[str, Any] | None:
    """None for a task without probabilities."""
    calibration = results.get("calibration")
    filled = [one for one in calibration["bins"] if one["count"]] if calibration else []
    if not calibration or not filled:
        return None
    count = sum(one["count"] for one in filled)
    said, came = (sum(one["count"] * one[key] for one in filled) / count for key in ("confidence", "frequency"))
    many = results["task"] == "multilabel"
    return {
        "ece": f"{calibration['ece']:.4g}",
        "said": f"{100 * said:.1f} %",
        "came": f"{100 * came:.1f} %",
        "many": many,
        "charts": [_diagram(filled, many), _counts(filled, many)],
        "rows": [_row(one) for one in filled],
    }


def _diagram(filled: Sequence[Mapping[str, Any]], many: bool) -> Chart:
    x, y = shares("probability told"), shares("true" if many else "right")
    marks = [Mark(line([(0, 0), (1, 1)], x, y, TALL), "line ideal")]
    marks += [Mark(_whisker(one, x, y), "line whisker") for one in filled]
    points = [(one["confidence"], one["frequency"]) for one in filled]
    marks.append(Mark(line(points, x, y, TALL), "line train thin"))
    for one, point in zip(filled, points, strict=True):
        tip = f"{counted(one['count'], 'answer')}: told {100 * point[0]:.1f} %, came true {100 * point[1]:.1f} %"
        marks.append(Mark(dots([point], x, y, TALL), "dots train", tip))
    key = [("train", "the model, with 95 % intervals"), ("ideal", "perfectly calibrated")]
    return Chart("Reliability diagram", x, y, marks, key, height=TALL)


def _whisker(one: Mapping[str, Any], x: Any, y: Any) -> str:
    low, high = wilson(one["frequency"], one["count"])
    return line([(one["confidence"], low), (one["confidence"], high)], x, y, TALL)


def wilson(share: float, count: int) -> tuple[float, float]:
    """Wilson's 95 % interval of a share that was seen in `count` cases; sensible for few of them, and at 0 and 1."""
    weight = SURE**2 / count
    centre = share + weight / 2
    reach = SURE * math.sqrt((share * (1 - share) + weight / 4) / count)
    return (centre - reach) / (1 + weight), (centre + reach) / (1 + weight)


def _counts(filled: Sequence[Mapping[str, Any]], many: bool) -> Chart:
    x = shares("probability told")
    y = axis("answers" if many else "images", [0, *(one["count"] for one in filled)], count=3, whole=True)
    tops = [(one["low"], one["high"], one["count"]) for one in filled]
    return Chart("How many answers", x, y, [Mark(bars(tops, x, y, SHORT), "area train")], height=SHORT)


def _row(one: Mapping[str, Any]) -> list[str]:
    return [
        f"{100 * one['low']:.0f} to {100 * one['high']:.0f} %",
        f"{one['count']:,}",
        f"{100 * one['confidence']:.1f} %",
        f"{100 * one['frequency']:.1f} %",
    ]
