"""The part of a run's page about boxes: how well each class is found, precision against recall, misses and alarms."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from vitrail.images.decode import UnreadableImage, read_image
from vitrail.tasks.detect.average_precision import hits
from vitrail.tasks.detect.box_metrics import misses_and_alarms
from vitrail.tasks.detect.box_pictures import Colour, draw_box
from vitrail.tasks.detect.nms import NEVER
from vitrail.tasks.report_part import MeasuredImages, ReportPart
from vitrail.tasks.shared.metric_words import score_cell
from vitrail.text import counted, shown
from vitrail.visuals.charts import Chart, Mark, line, shares
from vitrail.visuals.embedded import jpeg

SIDE = 400  # pixels of a picture's longer side
FOUND, MISSED, ALARM = (74, 170, 110), (226, 84, 46), (140, 107, 235)  # as box_report.css has them
AT_ONCE = 8  # pictures; the rest unfolds
CLASSES = 30  # rows of the table; the rest unfolds
LINES = 8  # classes with a line of their own in the chart, of as many colours in box_report.css
RECALLS = np.linspace(0, 1, 101)

DrawnBox = tuple[list[float], Colour, str]  # left, top, right, bottom in pixels; its colour and its name


def box_report(results: Mapping[str, Any], images: MeasuredImages, labels: Sequence[str]) -> ReportPart:
    gallery = box_gallery(results, images, labels)
    return ReportPart("box_report.html", box_section(results, gallery), style="box_report.css")


def box_gallery(results: Mapping[str, Any], images: MeasuredImages, labels: Sequence[str]) -> list[dict[str, Any]]:
    """The images in results["worst"], with what was detections, what was missed and what is not there."""
    gallery = []
    for row, (detections, truth) in zip(results["worst"], images.worst, strict=True):
        path = images.files[row["index"]]
        boxes = boxes_to_draw(detections[:, :6].cpu().numpy(), truth.cpu().numpy(), labels, results["threshold"])
        gallery.append(
            {
                "name": shown(path, images.root),
                "missed": counted(row["missed"], "object") + " missed" if row["missed"] else "",
                "alarms": counted(row["false_alarms"], "false alarm") if row["false_alarms"] else "",
                "truth": row["truth"] or "nothing",
                **_picture(path, boxes),
            }
        )
    return gallery


def _picture(path: Path, boxes: Sequence[DrawnBox]) -> dict[str, Any]:
    """As a data URI; None where the file can no longer be read."""
    try:
        pixels = read_image(path, 3)
    except UnreadableImage:
        return {"picture": None, "size": (SIDE, SIDE)}
    scale = SIDE / max(pixels.shape[:2])
    size = max(1, round(pixels.shape[1] * scale)), max(1, round(pixels.shape[0] * scale))
    picture = Image.fromarray(pixels).resize(size, Image.Resampling.BILINEAR)
    for box, colour, text in boxes:
        draw_box(picture, [side * scale for side in box], colour, text)
    return {"picture": jpeg(np.asarray(picture)), "size": size}


def boxes_to_draw(detections: np.ndarray, truth: np.ndarray, labels: Sequence[str], threshold: float) -> list[DrawnBox]:
    """The objects that were detections, without a name; then what went wrong, on top."""
    hit = hits(detections, truth)
    missed, alarms = misses_and_alarms(detections, truth, hit, threshold)
    right = np.flatnonzero((hit.object_of >= 0) & (detections[:, 1] >= threshold))
    boxes: list[DrawnBox] = [(detections[i, 2:].tolist(), FOUND, "") for i in right]
    boxes += [(truth[i, 1:5].tolist(), MISSED, labels[int(truth[i, 0])]) for i in missed]
    boxes += [(box, ALARM, f"{labels[int(k)]} {score:.2f}") for k, score, *box in detections[alarms].tolist()]
    return boxes


def box_section(results: Mapping[str, Any], gallery: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """What `box_report.html` shows of the results of the task detect."""
    rows = _class_rows(results["per_label"])
    return {
        "counts": _counts(results["counts"]),
        "threshold": f"{results['threshold']:.2f}",
        "suppression": _suppression(results.get("nms_iou")),
        "classes": (rows[:CLASSES], rows[CLASSES:]),
        "chart": pr_chart(results),
        "gallery": (gallery[:AT_ONCE], gallery[AT_ONCE:]),
    }


def _counts(counts: Mapping[str, int]) -> str:
    missed = counts["objects"] - counts["found"]
    return (
        f"Of {counted(counts['objects'], 'object')} {counts['found']:,} were found and {missed:,} missed; "
        f"there {'was' if counts['false_alarms'] == 1 else 'were'} {counted(counts['false_alarms'], 'false alarm')}."
    )


def _suppression(nms_iou: float | None) -> str:
    if nms_iou is None:
        return ""
    if nms_iou >= NEVER:
        return "Boxes are kept however much they overlap"
    return f"Of boxes of a class that overlap by more than {nms_iou:g} (IoU) only the surest is kept"


def pr_chart(results: Mapping[str, Any]) -> Chart:
    """Precision against recall at an overlap of one half: a line a class, or where they are many, of the commonest."""
    known = [curve for curve in results["curves"] if curve["precision"] is not None]
    support = {row["label"]: row["support"] for row in results["per_label"]}
    known.sort(key=lambda curve: -support.get(curve["label"], 0))
    x, y = shares("recall"), shares("precision")
    marks, key = [], []
    for number, curve in enumerate(known[:LINES]):
        style = f"pr{number}"
        marks.append(Mark(line(_until_nothing(curve["precision"]), x, y), style, curve["label"]))
        key.append((style, curve["label"]))
    note = f"The {LINES} commonest of {len(known)} classes." if len(known) > LINES else ""
    return Chart("Precision and recall", x, y, marks, key, note)


def _until_nothing(precision: Sequence[float]) -> list[tuple[float, float]]:
    """The points of a curve up to the largest recall that was reached."""
    points = list(zip(RECALLS.tolist(), precision, strict=True))
    reached = sum(1 for value in precision if value > 0)
    return points[: reached + 1]


def _class_rows(per_label: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Lowest AP50 first; classes that no measured image has come last."""
    ordered = sorted(per_label, key=lambda row: (row["AP50"] is None, row["AP50"] or 0.0))
    return [
        {
            "name": row["label"],
            "cells": [score_cell(row[name]) for name in ("AP50", "average_precision", "precision", "recall")],
            "objects": f"{row['support']:,}",
            "missed": f"{row['missed']:,}",
            "alarms": f"{row['false_alarms']:,}",
        }
        for row in ordered
    ]
