"""Images with numbers to predict: columns of a table, or folders that are named by a number."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from vitrail.dataset import SPLITS, Dataset, Item, Target
from vitrail.errors import VitrailError
from vitrail.findings import Example, Finding
from vitrail.tasks.shared.check_charts import bar_by_part, bar_chart, parts_key
from vitrail.tasks.shared.columns import RESERVED, Table, as_number, is_numeric
from vitrail.tasks.shared.scene import Scene
from vitrail.tasks.task_data import TableTargets, TargetLook, TaskData
from vitrail.text import counted, joined, listing, shown

BINS = 12  # of a histogram
COARSEST = 1 / 20  # of the spread of a number: a larger step of the answers would be seen in the score


class NumberData(TaskData):
    """A target is a tuple of numbers, one a label."""

    name = "regress"
    layouts = ("table", "folders", "split-folders")
    label_noun = ("number", "numbers")
    target_noun = ("numbers", "numbers")
    targets_vary = True  # two frames of a film may well differ in what was measured

    def targets_of_folders(self, folders: Sequence[Path]) -> tuple[tuple[str, ...], Mapping[Path, Target]]:
        return ("number",), {folder: (_number_of(folder),) for folder in folders}

    def reads_columns(self, columns: Collection[str], chosen: Sequence[str] | None) -> bool:
        return bool(chosen) or not {"label", "labels"} & set(columns)

    def targets_of_table(self, table: Table, chosen: Sequence[str] | None) -> TableTargets:
        """The columns that the user chose, else all of numbers; `label` where it is one, or the only one left."""
        name, free = shown(table.path), [column for column in table.columns if column not in RESERVED]
        unknown = [column for column in chosen or () if column not in table.columns]
        if unknown:
            raise VitrailError(f"{name} has no column {unknown[0]!r}; its columns: {table.column_names()}")
        numeric = [column for column in free if is_numeric(table.columns[column])]
        if chosen is None and "label" in table.columns and (not numeric or is_numeric(table.columns["label"])):
            chosen = ["label"]  # named so on purpose, unless it holds words and others hold numbers
        columns = list(chosen or numeric)
        if not columns:
            raise VitrailError(
                f"{name} has no column 'label', 'labels' or of numbers to learn; its columns: {table.column_names()}"
            )
        for column in columns:
            _check_numbers(table, column)
        values = [tuple(float(table.columns[column][row]) for column in columns) for row in range(len(table))]
        taken = set(columns)
        unused = [column for column in free if column not in taken]
        return TableTargets(tuple(columns), values, _unused_columns(unused))

    def describe(self, dataset: Dataset) -> str:
        return f"{counted(len(dataset.items), 'image')} with {joined(dataset.labels)} to predict"

    def target_words(self, item: Item, dataset: Dataset) -> str:
        return " ".join(f"{value:g}" for value in item.target) if isinstance(item.target, tuple) else ""

    def obstacles(self, dataset: Dataset) -> list[Finding]:
        train = dataset.part("train")
        for position, name in enumerate(dataset.labels):
            values = [item.target[position] for item in train if isinstance(item.target, tuple)]
            if len(set(values)) == 1:
                title = f"{name!r} is {values[0]:g} for every training image"
                advice = "remove the column: there is nothing to learn from it"
                return [Finding("constant-target", "error", title, advice, len(train), (Example((), name),))]
            if values and (step := float32_step(values)) > COARSEST * spread_of(values):
                title = f"{name!r} has numbers of about {values[0]:g}, where 32-bit answers come in steps of {step:g}"
                advice = f"subtract {min(values):.10g} from all, and add it to the answers"
                return [Finding("coarse-target", "error", title, advice, len(train), (Example((), name),))]
        return []

    def summary(self, dataset: Dataset, looks: Sequence[TargetLook | None]) -> dict[str, Any]:
        return {"targets": list(dataset.labels)}

    def charts(self, dataset: Dataset, looks: Sequence[TargetLook | None]) -> list[dict[str, Any]]:
        """A histogram of each number to predict."""
        charts = []
        for position, name in enumerate(dataset.labels):
            values = {
                split: [item.target[position] for item in dataset.part(split) if isinstance(item.target, tuple)]
                for split in SPLITS
            }
            charts.append(bar_chart(f"Images by {name}", _histogram(values), parts_key(dataset)))
        return charts

    def scene_columns(self, scene: Scene) -> dict[str, Any]:
        return {"count": len(scene.shapes), "size": int(scene.shapes[0].pixels.sum())}


def float32_step(values: Sequence[float]) -> float:
    """How far apart 32-bit numbers, such as a model's answers, are where the largest of these is."""
    return math.ldexp(1.0, math.frexp(max(map(abs, values)))[1] - 24)


def spread_of(values: Sequence[float]) -> float:
    """The standard deviation."""
    largest = max(map(abs, values)) or 1.0
    shares = [value / largest for value in values]  # whose squares are numbers, however large the values are
    mean = math.fsum(shares) / len(shares)
    return largest * math.sqrt(math.fsum((share - mean) ** 2 for share in shares) / len(shares))


# ---- parts


def _number_of(folder: Path) -> float:
    value = as_number(folder.name)
    if value is None or not math.isfinite(value):
        raise VitrailError(
            f"the folder {shown(folder)} is not named by a number, which task='regress' takes as the target"
        )
    return value


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


def _unused_columns(columns: Sequence[str]) -> list[Finding]:
    if not columns:
        return []
    title = f"{counted(len(columns), 'column is', 'columns are')} not used: {listing(columns, 5)}"
    advice = "nothing to do, if these are not to be predicted"
    return [Finding("unused-columns", "note", title, advice, len(columns))]


def _histogram(values: Mapping[str, Sequence[float]]) -> list[dict[str, Any]]:
    everything = [value for some in values.values() for value in some]
    low, high = min(everything), max(everything)
    step = (high - low) / BINS or 1.0

    def bin_of(value: float) -> int:
        return min(BINS - 1, int((value - low) / step))

    counts = [{split: sum(bin_of(value) == n for value in values[split]) for split in SPLITS} for n in range(BINS)]
    largest = max(sum(count.values()) for count in counts)
    return [bar_by_part(f"{low + n * step:.3g} to {low + (n + 1) * step:.3g}", counts[n], largest) for n in range(BINS)]
