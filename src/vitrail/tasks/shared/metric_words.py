"""What metrics are called on a page, and what each of them means, in one line."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from vitrail.text import counted

UNKNOWN = "\N{EN DASH}"  # in the place of a number


class MetricWords(NamedTuple):
    title: str
    meaning: str


LOSS = MetricWords("Loss", "what training makes small")
LABEL_METRICS = {
    "macro_f1": MetricWords(
        "Macro F1", "the mean of F1 over the classes; F1 is high when precision and recall both are"
    ),
    "log_loss": MetricWords("Log loss", "how much the truth surprised the model; 0 is best"),
    "ece": MetricWords(
        "Calibration error", "ECE: how far probabilities are from how often they turn out right; 0 is best"
    ),
}
NUMBER_METRICS = {
    "R2": MetricWords(
        "R²", "how much of the spread is explained: 1 is perfect, 0 no better than always telling the mean"
    ),
    "MAE": MetricWords("MAE", "mean absolute error: how far off the answers are on average"),
    "RMSE": MetricWords("RMSE", "root of the mean squared error: like MAE, but large errors weigh more"),
}


def default_title(metric: str) -> str:
    """The metric's own name, for one without a title."""
    words = metric.replace("_", " ")
    return words[:1].upper() + words[1:]


def interval_text(metric: str, intervals: Mapping[str, Any], show: Callable[[str, float], str]) -> str:
    """'91.2 % to 94.0 %'; empty where there is no interval, or one of width 0: if all images gave the same result,
    resampling them says nothing about other images."""
    low, high = intervals.get(metric) or (0.0, 0.0)
    return f"{show(metric, low)} to {show(metric, high)}" if low < high else ""


def over_groups(results: Mapping[str, Any]) -> str:
    """' over 33 groups', behind an interval that was made by drawing groups of images."""
    groups = results.get("groups")
    return "" if groups is None else f" over {counted(groups, 'group')}"


def score_cell(value: float | None, bar: bool = True) -> dict[str, str]:
    """A score of 0..1 in a table, with a bar behind it; a dash where it is not known."""
    if value is None:
        return {"text": UNKNOWN, "width": "0"}
    return {"text": f"{value:.3f}", "width": f"{100 * value:.1f}" if bar else "0"}
