"""The score at the top of a run's page: how good, how sure of that, and against what."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from vitrail.data.names import counted
from vitrail.report.metric_words import interval_text, meaning_of, title_of


def headline(results: Mapping[str, Any], part: str, show: Callable[[str, float], str]) -> dict[str, Any]:
    metric = results["main_metric"]
    value = results["metrics"][metric]
    return {
        "title": title_of(metric),
        "meaning": meaning_of(metric),
        "value": show(metric, value),
        "interval": interval_text(metric, results["intervals"], show),
        "range": _range(value, results["intervals"].get(metric)),
        "images": counted(results["images"], f"{part} image"),
        "remarks": [remark for remark in (_baseline(results, show), _caveat(results, part)) if remark],
    }


def _range(value: float, interval: Any) -> dict[str, str] | None:
    """Where score and interval stand between 0 and 1, in per cent of the way."""
    low, high = interval or (value, value)
    if not 0 <= low < high <= 1:
        return None
    return {"low": f"{100 * low:.2f}", "width": f"{100 * (high - low):.2f}", "value": f"{100 * value:.2f}"}


def _caveat(results: Mapping[str, Any], part: str) -> str:
    if part == "test":
        return "None of these images was used for training or for choosing anything."
    chosen = "the best epoch and the calibration" if "calibration" in results else "the best epoch"
    return f"These images also chose {chosen}, so new ones may score a little lower; a test part would tell."


def _baseline(results: Mapping[str, Any], show: Callable[[str, float], str]) -> str:
    """What answering without looking would score."""
    if results["main_metric"] != "accuracy":
        return ""
    most = max(results["per_label"], key=lambda row: row["support"])
    share = show("accuracy", most["support"] / results["images"])
    return f"Always answering the most frequent class, {most['label']}, would score {share}."
