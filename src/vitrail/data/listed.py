"""From a table of images to a collection: which task its columns mean, and what is wrong with its rows."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from vitrail.data.collection import Collection, Item, split_name
from vitrail.data.findings import Example, Finding, single
from vitrail.data.names import counted, listing, natural, nfc, shown
from vitrail.data.tables import RESERVED, Finder, Table, as_number, is_numeric, read_table
from vitrail.errors import VitrailError


@dataclass
class _Targets:
    task: str
    labels: tuple[str, ...]
    values: list[Any]  # one for each row
    findings: list[Finding] = field(default_factory=list)


def from_table(path: Path, task: str | None = None, targets: Sequence[str] | None = None) -> Collection:
    """A CSV or Parquet file with `image`, and `label`, `labels` or numbers. `targets`: which columns are numbers."""
    table = read_table(path)
    if "image" not in table.columns:
        names = ", ".join(table.columns) or "none"
        raise VitrailError(f"{shown(path)} has no column 'image' with the paths of the images; its columns: {names}")
    if not len(table):
        raise VitrailError(f"{shown(path)} has no rows below its column names")
    _check_cells(table)
    meant = _targets(table, task, targets)
    splits, groups = _splits(table), _groups(table)
    items, findings = _items(table, meant, splits, groups)
    return Collection(
        root=path.parent,
        layout="table",
        task=meant.task,
        labels=meant.labels,
        items=tuple(items),
        findings=(*findings, *meant.findings),
        table=path,
    )


# ---- what is to be learnt


def _targets(table: Table, task: str | None, targets: Sequence[str] | None) -> _Targets:
    name, columns = shown(table.path), table.columns
    if "label" in columns and "labels" in columns and task != "regress":
        raise VitrailError(
            f"{name} has both 'label' and 'labels': keep 'label' for one class an image, 'labels' for several"
        )
    if task == "regress" or targets:
        return _numbers(table, targets)
    if "labels" in columns or (task == "multilabel" and "label" in columns):
        if task == "classify":
            raise VitrailError(f"{name} has a column 'labels'; to learn one class an image, call it 'label'")
        return _several_labels(table, "labels" if "labels" in columns else "label")
    if "label" in columns:
        return _one_label(table)
    if task is not None:
        raise VitrailError(f"{name} has no column 'label' or 'labels', which task={task!r} needs")
    return _numbers(table, None)


def _one_label(table: Table) -> _Targets:
    cells = table.text("label")
    empty = [row for row, cell in enumerate(cells) if not cell]
    if empty:
        rows = counted(len(empty), "row has", "rows have")
        raise VitrailError(f"{shown(table.path)}: {rows} no label ({table.places(empty)}): fill in or remove")
    names = sorted(set(cells), key=natural)
    number = {name: index for index, name in enumerate(names)}
    findings = []
    fractions = [name for name in names if (value := as_number(name)) is not None and value % 1]
    if len(fractions) * 2 > len(names):
        title = f"the {counted(len(names), 'label')} look like measured numbers ({listing(fractions)})"
        advice = "for numbers to predict use task='regress'; as it is, each is a class of its own"
        findings.append(Finding("numeric-labels", "warning", title, advice, len(names)))
    return _Targets("classify", tuple(names), [number[cell] for cell in cells], findings)


def _several_labels(table: Table, column: str) -> _Targets:
    """`a|b`, or a list in a Parquet file; an empty cell is an image that has none of the labels."""
    rows = []
    for cell in table.columns[column]:
        pieces = cell if isinstance(cell, list | tuple) else ("" if cell is None else str(cell)).split("|")
        rows.append({nfc(str(piece)).strip() for piece in pieces if piece is not None} - {""})
    names = sorted(set().union(*rows), key=natural)
    if not names:
        raise VitrailError(f"{shown(table.path)}: the column {column!r} is empty in every row")
    number = {name: index for index, name in enumerate(names)}
    findings = []
    bare = sum(not row for row in rows)
    if bare:
        title = f"{counted(bare, 'image has', 'images have')} none of the labels"
        advice = "nothing to do, if that is meant: they teach what the labels are not"
        findings.append(Finding("no-label", "note", title, advice, bare))
    values = [tuple(sorted(number[piece] for piece in row)) for row in rows]
    return _Targets("multilabel", tuple(names), values, findings)


def _numbers(table: Table, wanted: Sequence[str] | None) -> _Targets:
    name, free = shown(table.path), [column for column in table.columns if column not in RESERVED]
    unknown = [column for column in wanted or () if column not in table.columns]
    if unknown:
        raise VitrailError(f"{name} has no column {unknown[0]!r}; its columns: {', '.join(table.columns)}")
    numeric = [column for column in free if is_numeric(table.columns[column])]
    if wanted is None and "label" in table.columns and (not numeric or is_numeric(table.columns["label"])):
        wanted = ["label"]  # named so on purpose, unless it holds words and others hold numbers
    chosen = list(wanted or numeric)
    if not chosen:
        columns = ", ".join(table.columns)
        raise VitrailError(f"{name} has no column 'label', 'labels' or of numbers to learn; its columns: {columns}")
    for column in chosen:
        _check_numbers(table, column)
    values = [tuple(float(table.columns[column][row]) for column in chosen) for row in range(len(table))]
    ignored = [column for column in free if column not in chosen]
    findings = []
    if ignored:
        title = f"{counted(len(ignored), 'column is', 'columns are')} not used: {listing(ignored, 5)}"
        advice = "nothing to do, if these are not to be predicted"
        findings.append(Finding("unused-columns", "note", title, advice, len(ignored)))
    return _Targets("regress", tuple(chosen), values, findings)


def _check_numbers(table: Table, column: str) -> None:
    numbers = [as_number(cell) for cell in table.columns[column]]
    bad = [row for row, value in enumerate(numbers) if value is None or not math.isfinite(value)]
    if bad:
        cell = table.columns[column][bad[0]]
        rows = counted(len(bad), "row has", "rows have")
        where = table.places(bad)
        raise VitrailError(
            f"{shown(table.path)}: {rows} no number in {column!r} ({where}, the first has {str(cell or '')!r}): "
            "fill in or remove"
        )


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


def _items(
    table: Table, meant: _Targets, splits: list[str | None], groups: list[str | None]
) -> tuple[list[Item], list[Finding]]:
    finder, missing, doubled = Finder(table.path.parent), [], []
    seen: dict[str, tuple[int, Item]] = {}
    for row, cell in enumerate(table.columns["image"]):
        path = finder.find(str(cell))
        if path is None:
            missing.append(table.path.parent / str(cell).strip())
            continue
        item = Item(path, meant.values[row], splits[row], groups[row])
        first = seen.setdefault(os.path.normpath(path), (row, item))
        if first[0] != row:
            _check_same(table, meant, first, (row, item))
            doubled.append(path)
    if not seen:
        raise _none_exists(table, missing)
    return [item for _, item in seen.values()], _row_findings(missing, doubled)


def _check_same(table: Table, meant: _Targets, first: tuple[int, Item], second: tuple[int, Item]) -> None:
    """The same image twice is once too often; twice with two answers is a question for the user."""
    one, other = first[1], second[1]
    where = f"in {shown(table.path)} ({table.places([first[0], second[0]])})"
    place = f"{shown(one.path, table.path.parent)} is listed twice {where}"
    if one.target != other.target:
        advice = "; for several labels on one image, use a column 'labels'" if meant.task == "classify" else ""
        raise VitrailError(f"{place} with different answers: keep the right one{advice}")
    if one.split != other.split:
        raise VitrailError(f"{place}, in {one.split} and in {other.split}: an image is in one part only")


def _none_exists(table: Table, missing: list[Path]) -> VitrailError:
    hint = "paths are relative to the folder of the table"
    if not any(path.suffix for path in missing):
        hint = "the names need their ending, such as .jpg"
    return VitrailError(f"{shown(table.path)}: none of its images exists, for example {shown(missing[0])}; {hint}")


def _row_findings(missing: list[Path], doubled: list[Path]) -> list[Finding]:
    findings = []
    if missing:
        title = f"{counted(len(missing), 'image is', 'images are')} listed but not there"
        advice = "restore the files or remove their rows; they are left out"
        findings.append(Finding("missing", "error", title, advice, len(missing), single(missing)))
    if doubled:
        title = f"{counted(len(doubled), 'row repeats', 'rows repeat')} an earlier one"
        advice = "remove them from the table; each image is used once"
        examples = tuple(Example((path,)) for path in doubled)
        findings.append(Finding("repeated-rows", "warning", title, advice, len(doubled), examples))
    return findings
