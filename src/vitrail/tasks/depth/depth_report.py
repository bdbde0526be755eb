"""The part of a run's page about depth: the errors against always answering the mean, and the worst images."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from vitrail.tasks.depth.depth_colours import colour_depth, colour_error
from vitrail.tasks.report_part import MeasuredImages, ReportPart
from vitrail.tasks.shared.report_pictures import AT_ONCE, fit_to_page, read_for_page, resize_map, shown_size
from vitrail.text import shown
from vitrail.visuals.embedded import jpeg, png


def depth_report(results: Mapping[str, Any], images: MeasuredImages, unit: str) -> ReportPart:
    metrics = results["metrics"]
    rows = [
        {
            **_pictures(images.files[row["index"]], answer, truth, unit),
            "name": shown(images.files[row["index"]], images.root),
            "score": f"AbsRel {row['AbsRel']:.3f}",
            "remark": row["remark"].partition(": ")[2],
            "words": f"Truth: median {row['truth']}. Answer: median {row['answer']}.",
        }
        for row, (answer, truth) in zip(results["worst"], images.worst, strict=True)
    ]
    share = metrics["MAE"] / max(metrics["MAE_of_the_mean"], 1e-12)
    values = {
        "mae": _with_unit(metrics["MAE"], unit),
        "mean_mae": _with_unit(metrics["MAE_of_the_mean"], unit),
        "share": f"{100 * share:.0f} %",
        "gallery": (rows[:AT_ONCE], rows[AT_ONCE:]),
    }
    return ReportPart("depth_report.html", values)


def _with_unit(value: float, unit: str) -> str:
    return f"{value:.3g} {unit}".strip()


def _pictures(path: Path, answer: Tensor, truth: Tensor, unit: str) -> dict[str, Any]:
    """Image, truth, answer and errors as data URIs, truth and answer in one range of colours."""
    size = fit_to_page(truth.shape)
    depth, target = (resize_map(part.cpu().numpy().astype(np.float32), size) for part in (answer, truth))
    known = target[target > 0]
    least, most = (float(known.min()), float(known.max())) if known.size else (float(depth.min()), float(depth.max()))
    image = read_for_page(path, size)
    return {
        "image": None if image is None else jpeg(image),
        "truth": png(colour_depth(target, least, most)),
        "answer": png(colour_depth(depth, least, most)),
        "errors": png(colour_error(depth, target)),
        "range": f"{least:.3g} to {_with_unit(most, unit)}",
        **shown_size(truth.shape),
    }
