"""The worst mistakes as pictures, with what the model said and what is true."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from vitrail.tasks.report_part import MeasuredImages
from vitrail.text import shown
from vitrail.visuals.thumbnails import thumbnail


def mistakes(worst: Sequence[Mapping[str, Any]], images: MeasuredImages) -> list[dict[str, Any]]:
    return [
        {
            "name": shown(images.files[mistake["index"]], images.root),
            "picture": thumbnail(images.source(mistake["index"])),
            **_words(mistake),
        }
        for mistake in worst
    ]


def _words(mistake: Mapping[str, Any]) -> dict[str, str]:
    """Answer and truth, a number to each, and a remark."""
    words = {"answer": mistake["answer"] or "none", "truth": mistake["truth"] or "none"}
    words |= {"of_answer": "", "of_truth": "", "remark": ""}
    if "probability" in mistake:
        words |= {"of_answer": percent(mistake["probability"]), "of_truth": percent(mistake["probability_of_truth"])}
    if "log_loss" in mistake:
        words["remark"] = f"log loss {mistake['log_loss']:.4g}"
    if "error" in mistake:
        words |= {"answer": f"{mistake['predicted']:.4g}", "truth": f"{mistake['true']:.4g}"}
        words["remark"] = f"off by {mistake['error']:+.4g}"
    return words


def percent(probability: float) -> str:
    return f"{100 * probability:.1f} %"
