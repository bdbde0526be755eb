"""Which class is taken for which: the confusion matrix as a coloured table, and the pairs that are confused most."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from vitrail.text import counted

READABLE = 30  # classes whose whole matrix is shown
CHOSEN = 20  # of more than that, those most often taken for each other
DENSE = 12  # classes above which the cells are small
PAIRS = 10  # shown at once; the rest unfolds


def confusion_table(results: Mapping[str, Any]) -> dict[str, Any] | None:
    """Rows are the truth, columns the answers. None without a matrix, or where a large one has no mistake to show."""
    if results.get("confusion") is None:
        return None
    matrix = np.asarray(results["confusion"])
    labels = [row["label"] for row in results["per_label"]]
    chosen = _chosen(matrix)
    if not chosen:
        return None
    left_out = len(labels) - len(chosen)
    note = f"{len(chosen)} of {len(labels):,} classes: those most often taken for each other." if left_out else ""
    columns = [labels[i] for i in chosen]
    return {
        "columns": columns + [counted(left_out, "other")] * bool(left_out),
        "rows": [_row(matrix, labels, i, chosen) for i in chosen],
        "dense": len(columns) > DENSE,
        "note": note,
    }


def _chosen(matrix: np.ndarray) -> list[int]:
    if len(matrix) <= READABLE:
        return list(range(len(matrix)))
    mistakes = matrix - np.diag(np.diagonal(matrix))
    chosen: set[int] = set()
    for place in np.argsort(-mistakes, axis=None, kind="stable"):
        truth, answer = divmod(int(place), len(matrix))
        if not mistakes[truth, answer] or len(chosen | {truth, answer}) > CHOSEN:
            break
        chosen |= {truth, answer}
    return sorted(chosen)


def _row(matrix: np.ndarray, labels: Sequence[str], i: int, chosen: Sequence[int]) -> dict[str, Any]:
    total = int(matrix[i].sum())
    cells = [_cell(int(matrix[i, j]), total, labels[i], labels[j], i == j) for j in chosen]
    if len(chosen) < len(labels):
        cells.append(_cell(total - sum(cell["count"] for cell in cells), total, labels[i], "others", False))
    return {"name": labels[i], "cells": cells, "total": f"{total:,}"}


def _cell(count: int, total: int, truth: str, answer: str, right: bool) -> dict[str, Any]:
    """`heat`, the strength of the colour, is the share of the row; for mistakes its square root, so that few show."""
    share = count / total if total else 0.0
    return {
        "count": count,
        "text": f"{count:,}" if count else "",
        "heat": f"{100 * (share if right else math.sqrt(share)):.0f}",
        "style": "right" if right else "wrong",
        "tip": f"{truth}, answered {answer}: {count:,} of {total:,} ({100 * share:.1f} %)" if count else "",
    }


def confused_pairs(results: Mapping[str, Any]) -> list[dict[str, str]]:
    return [
        {
            "truth": pair["truth"],
            "answer": pair["answer"],
            "count": f"{pair['count']:,}",
            "share": f"{100 * pair['share']:.1f} %",
            "width": f"{100 * pair['share']:.1f}",
        }
        for pair in results.get("confused_pairs", ())
    ]
