"""Whether the probabilities can be believed: the reliability diagram, and how many answers stand behind it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from vitrail.text import counted
from vitrail.visuals.charts import Chart, Mark, axis, bars, dots, line, shares

TALL, SHORT = 300.0, 140.0  # of the diagram and of the counts below it
SURE = 1.96  # standard deviations: 95 %


def reliability_section(results: Mapping[str, Any], many: bool) -> dict[str, Any] | None:
    """None without probabilities. many: there is one for each label of an image."""
    calibration = results.get("calibration")
    filled = [bin for bin in calibration["bins"] if bin["count"]] if calibration else []
    if not calibration or not filled:
        return None
    count = sum(bin["count"] for bin in filled)
    said, came = (sum(bin["count"] * bin[key] for bin in filled) / count for key in ("confidence", "frequency"))
    return {
        "ece": f"{calibration['ece']:.4g}",
        "said": f"{100 * said:.1f} %",
        "came": f"{100 * came:.1f} %",
        "many": many,
        "charts": [_diagram(filled, many), _counts(filled, many)],
        "rows": [_row(bin) for bin in filled],
    }


def _diagram(filled: Sequence[Mapping[str, Any]], many: bool) -> Chart:
    x, y = shares("probability told"), shares("true" if many else "right")
    marks = [Mark(line([(0, 0), (1, 1)], x, y, TALL), "line ideal")]
    marks += [Mark(_whisker(bin, x, y), "line whisker") for bin in filled]
    points = [(bin["confidence"], bin["frequency"]) for bin in filled]
    marks.append(Mark(line(points, x, y, TALL), "line train thin"))
    for bin, point in zip(filled, points, strict=True):
        tip = f"{counted(bin['count'], 'answer')}: told {100 * point[0]:.1f} %, came true {100 * point[1]:.1f} %"
        marks.append(Mark(dots([point], x, y, TALL), "dots train", tip))
    key = [("train", "the model, with 95 % intervals"), ("ideal", "perfectly calibrated")]
    return Chart("Reliability diagram", x, y, marks, key, height=TALL)


def _whisker(bin: Mapping[str, Any], x: Any, y: Any) -> str:
    low, high = wilson(bin["frequency"], bin["count"])
    return line([(bin["confidence"], low), (bin["confidence"], high)], x, y, TALL)


def wilson(share: float, count: int) -> tuple[float, float]:
    """Wilson's 95 % interval of a share that was seen in `count` cases; sensible for few of them, and at 0 and 1."""
    weight = SURE**2 / count
    centre = share + weight / 2
    reach = SURE * math.sqrt((share * (1 - share) + weight / 4) / count)
    return (centre - reach) / (1 + weight), (centre + reach) / (1 + weight)


def _counts(filled: Sequence[Mapping[str, Any]], many: bool) -> Chart:
    x = shares("probability told")
    y = axis("answers" if many else "images", [0, *(bin["count"] for bin in filled)], count=3, whole=True)
    tops = [(bin["low"], bin["high"], bin["count"]) for bin in filled]
    return Chart("How many answers", x, y, [Mark(bars(tops, x, y, SHORT), "area train")], height=SHORT)


def _row(bin: Mapping[str, Any]) -> list[str]:
    return [
        f"{100 * bin['low']:.0f} to {100 * bin['high']:.0f} %",
        f"{bin['count']:,}",
        f"{100 * bin['confidence']:.1f} %",
        f"{100 * bin['frequency']:.1f} %",
    ]
