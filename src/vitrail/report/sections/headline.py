"""The score at the top of a run's page: how good, how sure of that, and against what."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from vitrail.tasks.shared.metric_words import interval_text, over_groups
from vitrail.tasks.task import Task
from vitrail.text import counted, joined


def headline(results: Mapping[str, Any], part: str, task: Task, copied: int = 0) -> dict[str, Any]:
    """copied: how many of the measured images have copies in other parts."""
    metric = results["main_metric"]
    value = results["metrics"][metric]
    interval = interval_text(metric, results["intervals"], task.show)
    return {
        "title": task.title_of(metric),
        "meaning": task.meaning_of(metric),
        "value": task.show(metric, value),
        "interval": interval and f"{interval}{over_groups(results)}",
        "range": _range(value, results["intervals"].get(metric)),
        "images": counted(results["images"], f"{part} image"),
        "remarks": [remark for remark in _remarks(results, part, task, copied) if remark],
    }


def _remarks(results: Mapping[str, Any], part: str, task: Task, copied: int) -> list[str]:
    notes = [f"{note[:1].upper()}{note[1:]}." for note in results.get("notes", ())]
    return [task.baseline(results), _caveat(results, part), _copied(copied), _grouped(results), *notes]


def _copied(count: int) -> str:
    if not count:
        return ""
    return f"{counted(count, 'of them has a copy', 'of them have copies')} in another part: the score is flattered."


def _grouped(results: Mapping[str, Any]) -> str:
    groups = results.get("groups")
    if groups is None:
        return ""
    together = "Images of one group, and images that look the same, are not independent of each other"
    if groups == 1:
        return f"{together}: these are all one group, so how sure the score is cannot be told."
    return f"{together}: what counts for the interval are {groups:,} groups."


def _range(value: float, interval: Any) -> dict[str, str] | None:
    """Where score and interval stand between 0 and 1, in per cent of the width."""
    low, high = interval or (value, value)
    if not 0 <= low < high <= 1:
        return None
    return {"low": f"{100 * low:.2f}", "width": f"{100 * (high - low):.2f}", "value": f"{100 * value:.2f}"}


def _caveat(results: Mapping[str, Any], part: str) -> str:
    if part == "test":
        return "None of these images was used for training or for choosing anything."
    chosen = ["the best epoch"] if results.get("chose_weights", True) else []
    if "calibration" in results:
        chosen.append("the calibration")
    elif "threshold" in results:
        chosen.append("the threshold of precision, recall and F1")
    if results.get("nms_iou") is not None:
        chosen.append("from which overlap on two boxes are one object")
    if not chosen:
        return "Nothing was chosen by these images: few were measured on the way, and the last weights were kept."
    return f"These images also chose {joined(chosen)}, so new ones may score a little lower; a test part would tell."
