"""How well each class or label is recognised, the weakest first."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from vitrail.tasks.shared.metric_words import score_cell

SHOWN = 30  # rows that are shown at once; the rest unfolds
COLUMNS = {"average_precision": "AP", "precision": "Precision", "recall": "Recall", "f1": "F1", "ece": "ECE"}


def label_table(per_label: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Rows by average precision or else by F1; labels that no measured image has come last."""
    names = [name for name in COLUMNS if name in per_label[0]]
    first = "average_precision" if "average_precision" in names else "f1"
    largest = max(row["support"] for row in per_label)
    ordered = sorted(per_label, key=lambda row: (row[first] is None, row[first] or 0.0))
    rows = [_row(row, names, largest) for row in ordered]
    return {
        "columns": [COLUMNS[name] for name in names],
        "order": COLUMNS[first],
        "rows": rows[:SHOWN],
        "rest": rows[SHOWN:],
    }


def _row(row: Mapping[str, Any], names: Sequence[str], largest: int) -> dict[str, Any]:
    return {
        "name": row["label"],
        "cells": [score_cell(row[name], bar=name != "ece") for name in names],
        "support": {
            "text": f"{row['support']:,}",
            "width": f"{100 * row['support'] / largest:.1f}" if largest else "0",
        },
    }
