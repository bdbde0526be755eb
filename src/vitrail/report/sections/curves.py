"""How training went: the rows of metrics.jsonl as curves and as a table."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import fmean, median
from typing import Any

from vitrail.tasks.shared.metric_words import UNKNOWN
from vitrail.text import counted
from vitrail.training.train_step import Scores
from vitrail.visuals.charts import Chart, Mark, Point, axis, dots, line

POINTS = 240  # of a curve: more than a screen can show apart
DOTTED = 40  # values up to which each has a dot
FLOOR = -1.0  # of the main metric: an R2 below it is useless anyway, and would flatten the rest

Row = Mapping[str, Any]


def curves(history: Sequence[Row], metric: str, task: Scores) -> dict[str, Any] | None:
    """`charts` to see at once, `more` of them to unfold, and the table of validations; None without any history."""
    training = [row for row in history if "loss" in row]
    validations = [row for row in history if "validation" in row]
    charts = [_losses(training, validations), score_chart(validations, metric, task)]
    more = [
        _one_curve("Learning rate", "lr", training),
        _one_curve("Speed, images per second", "images_per_second", training),
    ]
    if not any(charts):
        return None
    return {
        "charts": [chart for chart in charts if chart],
        "more": [chart for chart in more if chart],
        "table": _table(validations, task),
    }


def kept_of(history: Sequence[Row]) -> Row | None:
    """The validation whose weights were kept: the last that was better than all before it or, with few images, the
    last. Earlier runs wrote only which were the best."""
    return next((row for row in reversed(history) if row.get("kept", row.get("best"))), None)


def kept_word(kept: Row) -> str:
    """What is said of the validation whose weights were kept."""
    return "best" if kept.get("best") else "kept"


def speed_of(history: Sequence[Row]) -> float | None:
    """Images a second: the median of the rows."""
    speeds = [row["images_per_second"] for row in history if _known(row.get("images_per_second"))]
    return median(speeds) if speeds else None


# ---- charts


def _losses(training: Sequence[Row], validations: Sequence[Row]) -> Chart | None:
    trained = thinned([(row["epoch"], row["loss"]) for row in training if _known(row["loss"])])
    validated = _validated(validations, "loss")
    if not trained and not validated:
        return None
    both = trained + validated
    x = axis("epoch", [0.0, *(a for a, _ in both)])
    y = axis("", [0.0, *(b for _, b in both)])
    marks = [Mark(line(trained, x, y), "line train"), Mark(line(validated, x, y), "line val")]
    for points, style in ((trained, "dots train"), (validated, "dots val")):
        if len(points) <= DOTTED:
            marks.append(Mark(dots(points, x, y), style))
    key = [("train", "training")] * bool(trained) + [("val", "validation")] * bool(validated)
    note = "Training images are augmented and may be mixed, so their loss can lie above that of validation."
    return Chart("Loss", x, y, marks, key, note if trained and validated else "")


def score_chart(validations: Sequence[Row], metric: str, task: Scores) -> Chart | None:
    """A metric of the evaluations on the way; None where none of them has it."""
    points = _validated(validations, metric)
    if not points:
        return None
    percent = task.show(metric, 1.0).endswith("%")
    x = axis("epoch", [0.0, *(a for a, _ in points)])
    highest = max(b for _, b in points)
    y = axis("", [max(b, FLOOR) if highest > FLOOR else b for _, b in points], percent=percent)
    marks = [Mark(line(points, x, y), "line val")]
    if len(points) <= DOTTED:
        marks.append(Mark(dots(points, x, y), "dots val"))
    note = ""
    key = [("val", "validation")]
    kept = kept_of(validations)
    if kept is not None and _known(kept["validation"].get(metric)):
        value, word = kept["validation"][metric], kept_word(kept)
        note = f"{word.capitalize()}: {task.show(metric, value)} at epoch {kept['epoch']:.4g} (step {kept['step']:,})."
        spot = dots([(kept["epoch"], value)], x, y)
        marks += [Mark(spot, "best", note), Mark(spot, "core", note)]
        key.append(("best", word))
    return Chart(task.title_of(metric), x, y, marks, key, note)


def _one_curve(title: str, name: str, rows: Sequence[Row]) -> Chart | None:
    points = thinned([(row["epoch"], row[name]) for row in rows if _known(row.get(name))])
    if not points:
        return None
    x = axis("epoch", [0.0, *(a for a, _ in points)])
    y = axis("", [0.0, *(b for _, b in points)])
    marks = [Mark(line(points, x, y), "line train")]
    if len(points) <= DOTTED:
        marks.append(Mark(dots(points, x, y), "dots train"))
    return Chart(title, x, y, marks)


def thinned(points: Sequence[Point], most: int = POINTS) -> list[Point]:
    """At most that many points: means of neighbours where there are more."""
    together = math.ceil(len(points) / most)
    if together <= 1:
        return list(points)
    groups = [points[start : start + together] for start in range(0, len(points), together)]
    return [(fmean(a for a, _ in group), fmean(b for _, b in group)) for group in groups]


def _validated(validations: Sequence[Row], metric: str) -> list[Point]:
    return [(row["epoch"], row["validation"][metric]) for row in validations if _known(row["validation"].get(metric))]


def _known(value: Any) -> bool:
    return isinstance(value, int | float) and math.isfinite(value)


# ---- table


def _table(validations: Sequence[Row], task: Scores) -> dict[str, Any] | None:
    if not validations:
        return None
    names = list(dict.fromkeys(name for row in validations for name in row["validation"]))
    kept = kept_of(validations)
    rows = [
        {
            "epoch": f"{row['epoch']:.4g}",
            "step": f"{row['step']:,}",
            "values": [_shown(name, row["validation"].get(name), task) for name in names],
            "best": row is kept,
        }
        for row in validations
    ]
    title = f"All {counted(len(rows), 'validation')}" if len(rows) > 1 else "The validation"
    return {"title": title, "names": [task.title_of(name) for name in names], "rows": rows}


def _shown(name: str, value: Any, task: Scores) -> str:
    return task.show(name, value) if isinstance(value, int | float) else UNKNOWN
