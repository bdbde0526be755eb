"""What the metrics are called on a page, and what each of them means, in one line."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

UNKNOWN = "\N{EN DASH}"  # in the place of a number

# name: (title, meaning)
WORDS = {
    "accuracy": ("Accuracy", "how many of all images were given the right class"),
    "balanced_accuracy": (
        "Balanced accuracy",
        "the mean of the classes' recalls: each class counts the same, however rare",
    ),
    "top5_accuracy": ("Top-5 accuracy", "how often the right class was among the five most probable"),
    "macro_f1": ("Macro F1", "the mean of F1 over the classes; F1 is high when precision and recall both are"),
    "micro_f1": ("Micro F1", "F1 over all labels of all images taken together"),
    "exact_match": ("Exact match", "how many images were given all their labels and no other"),
    "mAP": ("mAP", "mean average precision: how well each label ranks the images that have it before the others"),
    "log_loss": ("Log loss", "how much the truth surprised the model; 0 is best"),
    "loss": ("Loss", "what training makes small"),
    "ece": ("Calibration error", "ECE: how far probabilities are from how often they turn out right; 0 is best"),
    "mIoU": (
        "Mean IoU",
        "of the pixels that are of a class or were answered to be, how many are both; the mean over classes",
    ),
    "pixel_accuracy": ("Pixel accuracy", "how many of all pixels were given the right class; large areas decide it"),
    "boundary_f1": ("Boundary F1", "how well outlines are met, within a small tolerance"),
    "AP50": ("AP50", "average precision over the classes, where a box counts as right if it overlaps by one half"),
    "AP75": ("AP75", "the same, where it must overlap by three quarters"),
    "AP": ("AP", "COCO's average precision: the mean over overlaps from 0.5 to 0.95"),
    "precision": ("Precision", "how many of the objects that were told are there"),
    "recall": ("Recall", "how many of the objects that are there were told"),
    "f1": ("F1", "high when precision and recall both are"),
    "R2": ("R²", "how much of the spread is explained: 1 is perfect, 0 no better than always telling the mean"),
    "MAE": ("MAE", "mean absolute error: how far off the answers are on average"),
    "RMSE": ("RMSE", "root of the mean squared error: like MAE, but large errors weigh more"),
}


def title_of(metric: str) -> str:
    if metric in WORDS:
        return WORDS[metric][0]
    words = metric.replace("_", " ")
    return words[:1].upper() + words[1:]


def meaning_of(metric: str) -> str:
    return WORDS[metric][1] if metric in WORDS else ""


def metric_rows(results: Mapping[str, Any], show: Callable[[str, float], str]) -> list[dict[str, str]]:
    """All metrics of an evaluation, each with its interval."""
    return [
        {
            "title": title_of(name),
            "meaning": meaning_of(name),
            "value": show(name, value),
            "interval": interval_text(name, results["intervals"], show),
        }
        for name, value in results["metrics"].items()
    ]


def interval_text(metric: str, intervals: Mapping[str, Any], show: Callable[[str, float], str]) -> str:
    """'91.2 % to 94.0 %'; empty where there is none, or one without width: images that all came out alike say nothing
    about the next one."""
    low, high = intervals.get(metric) or (0.0, 0.0)
    return f"{show(metric, low)} to {show(metric, high)}" if low < high else ""
