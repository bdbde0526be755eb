"""The worst mistakes as pictures, with what the model said and what is true."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from vitrail.data.names import shown
from vitrail.report.thumbnails import thumbnail


def mistakes(worst: Sequence[Mapping[str, Any]], files: Sequence[Path], root: Path) -> list[dict[str, Any]]:
    return [
        {
            "name": shown(files[one["index"]], root),
            "picture": thumbnail(files[one["index"]]),
            **_words(one),
        }
        for one in worst
    ]


def _words(one: Mapping[str, Any]) -> dict[str, str]:
    """Answer and truth, a number to each, and a remark."""
    words = {"answer": one["answer"] or "none", "truth": one["truth"] or "none"}
    words |= {"of_answer": "", "of_truth": "", "remark": ""}
    if "probability" in one:
        words |= {"of_answer": percent(one["probability"]), "of_truth": percent(one["probability_of_truth"])}
    if "log_loss" in one:
        words["remark"] = f"log loss {one['log_loss']:.4g}"
    if "error" in one:
        words |= {"answer": f"{one['predicted']:.4g}", "truth": f"{one['true']:.4g}"}
        words["remark"] = f"off by {one['error']:+.4g}"
    return words


def percent(probability: float) -> str:
    return f"{100 * probability:.1f} %"
