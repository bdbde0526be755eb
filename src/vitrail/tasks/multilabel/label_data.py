"""Images of which each has any number of labels: a table with a column `labels`."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from vitrail.dataset import Dataset, Item, Target
from vitrail.errors import VitrailError
from vitrail.findings import Finding
from vitrail.tasks.shared.check_charts import class_chart
from vitrail.tasks.shared.columns import Table
from vitrail.tasks.shared.labels.class_checks import Counted, check_class_counts, counts_by_part, untaught_classes
from vitrail.tasks.task_data import ExaminedItems, TableTargets, TargetLook, TaskData
from vitrail.text import counted, natural, nfc, shown


class LabelData(TaskData):
    """A target is the numbers of the labels that an image has."""

    name = "multilabel"
    layouts = ("table", "folders", "split-folders")  # folders only to say what to use instead

    def targets_of_folders(self, folders: Sequence[Path]) -> tuple[tuple[str, ...], Mapping[Path, Target]]:
        raise VitrailError(
            "folders give one label an image: for several, use a table with the columns image and labels"
        )

    def reads_columns(self, columns: Collection[str], chosen: Sequence[str] | None) -> bool:
        return "labels" in columns and not chosen

    def targets_of_table(self, table: Table, chosen: Sequence[str] | None) -> TableTargets:
        """`a|b`, or a list in a Parquet file; an empty cell is an image that has none of the labels."""
        table.check_labelled(self.name)
        column = "labels" if "labels" in table.columns else "label"
        rows = []
        for cell in table.columns[column]:
            pieces = cell if isinstance(cell, list | tuple) else ("" if cell is None else str(cell)).split("|")
            rows.append({nfc(str(piece)).strip() for piece in pieces if piece is not None} - {""})
        names = sorted(set().union(*rows), key=natural)
        if not names:
            raise VitrailError(f"{shown(table.path)}: the column {column!r} is empty in every row")
        number = {name: index for index, name in enumerate(names)}
        values = [tuple(sorted(number[piece] for piece in row)) for row in rows]
        return TableTargets(tuple(names), values, _unlabelled(sum(not row for row in rows)))

    def describe(self, dataset: Dataset) -> str:
        labels = counted(len(dataset.labels), "label")
        return f"{counted(len(dataset.items), 'image')} with {labels}, several on one image"

    def target_words(self, item: Item, dataset: Dataset) -> str:
        return "|".join(dataset.labels[number] for number in item.classes()) or "(none)"

    def obstacles(self, dataset: Dataset) -> list[Finding]:
        return untaught_classes(dataset)

    def check(self, dataset: Dataset, examined: ExaminedItems) -> list[Finding]:
        return check_class_counts(dataset, examined.automatic_split, Counted())

    def summary(self, dataset: Dataset, looks: Sequence[TargetLook | None]) -> dict[str, Any]:
        return counts_by_part(dataset)

    def charts(self, dataset: Dataset, looks: Sequence[TargetLook | None]) -> list[dict[str, Any]]:
        return [class_chart(dataset, "Images of each class")]


def _unlabelled(count: int) -> list[Finding]:
    if not count:
        return []
    title = f"{counted(count, 'image has', 'images have')} none of the labels"
    advice = "nothing to do, if that is meant: they teach what the labels are not"
    return [Finding("no-label", "note", title, advice, count)]
