"""From a table of images to a collection: which task its columns mean, and what is wrong with its rows."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from vitrail.data.layouts.table_file import Finder, read_table
from vitrail.dataset import Dataset, Item, Target, split_name
from vitrail.errors import VitrailError
from vitrail.findings import Finding, about_files
from vitrail.tasks.registry import task_data, tasks_of_layout
from vitrail.tasks.shared.columns import Table
from vitrail.tasks.task_data import TaskData
from vitrail.text import counted, listing, shown


def from_table(path: Path, task: str | None = None, targets: Sequence[str] | None = None) -> Dataset:
    """A CSV or Parquet file with `image`, and `label`, `labels` or numbers. `targets`: which columns are numbers."""
    table = read_table(path)
    if "image" not in table.columns:
        raise VitrailError(
            f"{shown(path)} has no column 'image' with the paths of the images; its columns: {table.column_names()}"
        )
    if not len(table):
        raise VitrailError(f"{shown(path)} has no rows below its column names")
    _check_cells(table)
    data = _task_of(table, task, targets)
    learnt = data.targets_of_table(table, targets)
    items, findings = _items(table, learnt.values, data)
    return Dataset(
        root=path.parent,
        layout="table",
        task=data.name,
        labels=learnt.labels,
        items=tuple(items),
        findings=(*findings, *learnt.findings),
        table=path,
    )


def _task_of(table: Table, task: str | None, chosen: Sequence[str] | None) -> TaskData:
    """The task that is asked for, or that the columns mean. Columns that the user named as targets decide."""
    if task is not None and not chosen:
        return task_data(task)
    return next(data for data in tasks_of_layout("table") if data.reads_columns(table.columns.keys(), chosen))


# ---- rows


def _check_cells(table: Table) -> None:
    for row, cell in enumerate(table.columns["image"]):
        if isinstance(cell, dict | bytes):
            raise VitrailError(f"{shown(table.path)} holds the images themselves; a column of paths is what is read")
        if cell is None or not str(cell).strip():
            raise VitrailError(f"{shown(table.path)}: no image is named in {table.places([row])}")
        if str(cell).startswith(("http://", "https://")):
            raise VitrailError(f"{shown(table.path)} lists web addresses: download the images, then list their paths")


def _splits(table: Table) -> list[str | None]:
    if "split" not in table.columns:
        return [None] * len(table)
    written = table.text("split")
    splits = [split_name(cell) for cell in written]
    bad = [row for row, split in enumerate(splits) if split is None]
    if len(bad) == len(table) and not any(written):
        return [None] * len(table)
    if bad:
        names = listing(sorted({repr(written[row]) for row in bad}))
        raise VitrailError(
            f"{shown(table.path)}: the split is {names} in {table.places(bad)}; it is train, val or test in every row"
        )
    return splits


def _groups(table: Table) -> list[str | None]:
    return [cell or None for cell in table.text("group")] if "group" in table.columns else [None] * len(table)


def _items(table: Table, targets: Sequence[Target], data: TaskData) -> tuple[list[Item], list[Finding]]:
    splits, groups = _splits(table), _groups(table)
    finder, missing, doubled = Finder(table.path.parent), [], []
    seen: dict[str, tuple[int, Item]] = {}
    for row, cell in enumerate(table.columns["image"]):
        path = finder.find(str(cell))
        if path is None:
            missing.append(table.path.parent / str(cell).strip())
            continue
        item = Item(path, targets[row], splits[row], groups[row])
        first = seen.setdefault(os.path.normpath(path), (row, item))
        if first[0] != row:
            _check_same(table, data, first, (row, item))
            doubled.append(path)
    if not seen:
        raise _none_exists(table, missing)
    return [item for _, item in seen.values()], _row_findings(missing, doubled)


def _check_same(table: Table, data: TaskData, first: tuple[int, Item], second: tuple[int, Item]) -> None:
    """The same image twice is once too often; twice with two answers is a question for the user."""
    one, other = first[1], second[1]
    where = f"in {shown(table.path)} ({table.places([first[0], second[0]])})"
    place = f"{shown(one.path, table.path.parent)} is listed twice {where}"
    if one.target != other.target:
        raise VitrailError(f"{place} with different answers: keep the right one{data.advice_on_two_targets}")
    if one.split != other.split:
        raise VitrailError(f"{place}, in {one.split} and in {other.split}: an image is in one part only")


def _none_exists(table: Table, missing: list[Path]) -> VitrailError:
    hint = "paths are relative to the folder of the table"
    if not any(path.suffix for path in missing):
        hint = "the names need their ending, such as .jpg"
    return VitrailError(f"{shown(table.path)}: none of its images exists, for example {shown(missing[0])}; {hint}")


def _row_findings(missing: list[Path], doubled: list[Path]) -> list[Finding]:
    not_there = f"{counted(len(missing), 'image is', 'images are')} listed but not there"
    restore = "restore the files or remove their rows; they are left out"
    repeated = f"{counted(len(doubled), 'row repeats', 'rows repeat')} an earlier one"
    remove = "remove them from the table; each image is used once"
    return [
        *about_files("missing", "error", not_there, restore, missing),
        *about_files("repeated-rows", "warning", repeated, remove, doubled),
    ]
