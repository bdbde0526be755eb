"""The part of a run's page about depth: the errors against always answering the mean, and the worst images."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from vitrail.images.decode import UnreadableImage, read_image
from vitrail.tasks.depth.depth_colours import colour_depth, colour_error
from vitrail.tasks.report_part import MeasuredImages, ReportPart
from vitrail.text import shown
from vitrail.visuals.embedded import jpeg, png

SIDE = 256  # pixels of a picture's longer side
AT_ONCE = 8  # pictures; the rest unfolds


def depth_report(results: Mapping[str, Any], images: MeasuredImages, unit: str) -> ReportPart:
    metrics = results["metrics"]
    rows = [
        {
            **_pictures(images.files[row["index"]], answer, truth),
            "name": shown(images.files[row["index"]], images.root),
            "error": f"{row['AbsRel']:.3f}",
            "remark": row["remark"].partition(": ")[2],
            "truth_words": row["truth"],
            "answer_words": row["answer"],
        }
        for row, (answer, truth) in zip(results["worst"], images.worst, strict=True)
    ]
    share = metrics["MAE"] / max(metrics["MAE_of_the_mean"], 1e-12)
    values = {
        "unit": unit,
        "mae": _with_unit(metrics["MAE"], unit),
        "mean_mae": _with_unit(metrics["MAE_of_the_mean"], unit),
        "share": f"{100 * share:.0f} %",
        "gallery": (rows[:AT_ONCE], rows[AT_ONCE:]),
    }
    return ReportPart("depth_report.html", values, style="depth_report.css")


def _with_unit(value: float, unit: str) -> str:
    return f"{value:.3g} {unit}".strip()


def _pictures(path: Path, answer: Tensor, truth: Tensor) -> dict[str, Any]:
    """Image, truth, answer and error as data URIs, truth and answer in one range of colours."""
    size = _fit(truth.shape)
    depth, target = (_resize(part.cpu().numpy(), size) for part in (answer, truth))
    known = target[target > 0]
    least, most = (float(known.min()), float(known.max())) if known.size else (float(depth.min()), float(depth.max()))
    try:
        picture = Image.fromarray(read_image(path, 3, target=(size[1], size[0])))
        image = jpeg(np.asarray(picture.resize(size, Image.Resampling.BILINEAR)))
    except UnreadableImage:
        image = None
    return {
        "image": image,
        "truth": png(colour_depth(target, least, most)),
        "answer": png(colour_depth(depth, least, most)),
        "errors": png(colour_error(depth, target)),
        "size": size,
        "least": f"{least:.3g}",
        "most": f"{most:.3g}",
    }


def _fit(shape: Sequence[int]) -> tuple[int, int]:
    """Width and height for the page; a small picture is enlarged, so that its pixels can be seen."""
    scale = SIDE / max(shape)
    return max(1, round(shape[1] * scale)), max(1, round(shape[0] * scale))


def _resize(depth: NDArray[np.float32], size: tuple[int, int]) -> NDArray[np.float32]:
    return np.asarray(Image.fromarray(depth.astype(np.float32)).resize(size, Image.Resampling.NEAREST))
