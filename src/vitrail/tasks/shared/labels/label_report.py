"""The part of a run's report about labels: what is taken for what, each class, calibration, the worst mistakes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from vitrail.tasks.report_part import MeasuredImages, ReportPart
from vitrail.tasks.shared.labels.confusion import PAIRS, confused_pairs, confusion_table
from vitrail.tasks.shared.labels.label_table import label_table
from vitrail.tasks.shared.labels.reliability import reliability_section
from vitrail.tasks.shared.mistakes import mistakes


def label_report(
    results: Mapping[str, Any], images: MeasuredImages, *, noun: str, mistakes_are: str, several: bool
) -> ReportPart:
    """noun: what a label is called. mistakes_are: which mistakes are the worst. several: an image may have several
    labels, so probabilities are those of each label, not of an answer."""
    pairs = confused_pairs(results)
    values = {
        "noun": noun,
        "confusion": confusion_table(results),
        "pairs": (pairs[:PAIRS], pairs[PAIRS:]),
        "labels": label_table(results["per_label"]),
        "calibration": reliability_section(results, several),
        "mistakes": mistakes(results["worst"], images),
        "mistakes_are": mistakes_are,
    }
    return ReportPart("label_report.html", values)
