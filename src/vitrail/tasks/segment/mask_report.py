"""The part of a run's page about masks: how well each class is met, what is taken for what, and the worst pictures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vitrail.tasks.dense_options import IGNORE
from vitrail.tasks.report_part import MeasuredImages, ReportPart
from vitrail.tasks.segment.boundaries import TOLERANCE
from vitrail.tasks.shared.labels.confusion import confusion_table
from vitrail.tasks.shared.metric_words import score_cell
from vitrail.tasks.shared.report_pictures import AT_ONCE, fit_to_page, read_for_page, resize_map, shown_size
from vitrail.text import shown
from vitrail.visuals.embedded import jpeg, png
from vitrail.visuals.palette import coloured, hexadecimal, palette

WRONG = (208, 80, 50)  # as run.css has it
CLASSES = 30  # rows of the table; the rest unfolds

Pixels = NDArray[np.uint8]


def mask_report(results: Mapping[str, Any], images: MeasuredImages, labels: Sequence[str]) -> ReportPart:
    gallery = mask_gallery(results, images, labels)
    return ReportPart("mask_report.html", mask_section(results, gallery), style="mask_report.css")


def mask_gallery(results: Mapping[str, Any], images: MeasuredImages, labels: Sequence[str]) -> list[dict[str, Any]]:
    """The images in results["worst"], with picture, truth, answer and errors of each."""
    return [
        {
            "name": shown(images.files[row["index"]], images.root),
            "score": f"IoU {row['iou']:.3f}",
            "remark": row["remark"].partition(": ")[2],
            "words": "",
            **_pictures(images.files[row["index"]], answer.cpu().numpy(), truth.cpu().numpy(), labels),
        }
        for row, (answer, truth) in zip(results["worst"], images.worst, strict=True)
    ]


def _pictures(path: Path, answer: Pixels, truth: Pixels, labels: Sequence[str]) -> dict[str, Any]:
    """As data URIs; without `image` where the file can no longer be read."""
    size = fit_to_page(truth.shape)
    small_answer, small_truth = resize_map(answer, size), resize_map(truth, size)
    image = read_for_page(path, size)
    return {
        "image": None if image is None else jpeg(image),
        "truth": png(coloured(small_truth, labels)),
        "answer": png(coloured(small_answer, labels)),
        "errors": jpeg(errors_shown(image, small_answer, small_truth)),
        "range": "",
        **shown_size(truth.shape),
    }


def errors_shown(image: Pixels | None, answer: Pixels, truth: Pixels) -> Pixels:
    """The picture in pale grey, wrong pixels coloured, unknown ones striped."""
    if image is None:
        image = np.full((*truth.shape, 3), 200, np.uint8)
    drawn = np.repeat(image.mean(2, keepdims=True) * 0.4 + 140, 3, axis=2)
    known = truth != IGNORE
    wrong = known & (answer != truth)
    drawn[wrong] = 0.15 * drawn[wrong] + 0.85 * np.array(WRONG)
    rows, columns = np.indices(truth.shape)
    drawn[~known & ((rows + columns) % 8 < 3)] = 90
    return drawn.astype(np.uint8)


def mask_section(results: Mapping[str, Any], gallery: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """What `mask_report.html` shows of the results of the task segment."""
    labels = [row["label"] for row in results["per_label"]]
    rows = _class_rows(results["per_label"])
    return {
        "key": [(label, hexadecimal(colour)) for label, colour in zip(labels, palette(labels), strict=True)],
        "classes": (rows[:CLASSES], rows[CLASSES:]),
        "tolerance": f"{100 * TOLERANCE:g} %",
        "confusion": pixel_confusion(results),
        "gallery": (gallery[:AT_ONCE], gallery[AT_ONCE:]),
    }


def _class_rows(per_label: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Lowest IoU first; classes that no measured image has come last."""
    colours = palette([row["label"] for row in per_label])
    total = max(1, sum(row["pixels"] for row in per_label))
    rows = [
        {
            "name": row["label"],
            "colour": hexadecimal(colour),
            "order": (row["iou"] is None, row["iou"] or 0.0),
            "interval": "{:.3f} to {:.3f}".format(*row["iou_interval"]) if row["iou_interval"] else "",
            "cells": [score_cell(row[name]) for name in ("iou", "precision", "recall", "boundary_f1")],
            "area": f"{100 * row['pixels'] / total:.2g} %" if row["pixels"] < total else "100 %",
            "images": f"{row['support']:,}",
        }
        for row, colour in zip(per_label, colours, strict=True)
    ]
    return sorted(rows, key=lambda row: row["order"])


def pixel_confusion(results: Mapping[str, Any]) -> dict[str, Any] | None:
    """The matrix of confusion.py in per cent of a row, for pixels are too many to be read as counts."""
    table = confusion_table({"confusion": results["pixel_confusion"], "per_label": results["per_label"]})
    if table is None:
        return None
    everything = max(1, int(np.sum(results["pixel_confusion"])))
    for row in table["rows"]:
        total = sum(cell["count"] for cell in row["cells"])
        for cell in row["cells"]:
            share = 100 * cell["count"] / max(1, total)
            cell["text"] = f"{share:.0f}" if share >= 0.5 else ""
        row["total"] = f"{100 * total / everything:.1f} %"
    return table
