"""Images of which each has one class: class folders, or a table with a column `label`."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from vitrail.dataset import Dataset, Item, Target
from vitrail.errors import VitrailError
from vitrail.findings import Finding
from vitrail.tasks.classify.given_away import class_given_away
from vitrail.tasks.shared.check_charts import class_chart
from vitrail.tasks.shared.columns import Table, as_number
from vitrail.tasks.shared.labels.class_checks import Counted, check_class_counts, counts_by_part, untaught_classes
from vitrail.tasks.shared.scene import SHAPES, Scene
from vitrail.tasks.task_data import ExaminedItems, TableTargets, TargetLook, TaskData
from vitrail.text import counted, listing, natural, nfc, shown


class ClassData(TaskData):
    """A target is the number of a class."""

    name = "classify"
    layouts = ("table", "folders", "split-folders")
    advice_on_two_targets = "; for several labels on one image, use a column 'labels'"

    def targets_of_folders(self, folders: Sequence[Path]) -> tuple[tuple[str, ...], Mapping[Path, Target]]:
        names = sorted({nfc(folder.name) for folder in folders}, key=natural)
        number = {name: index for index, name in enumerate(names)}
        return tuple(names), {folder: number[nfc(folder.name)] for folder in folders}

    def reads_columns(self, columns: Collection[str], chosen: Sequence[str] | None) -> bool:
        return "label" in columns and "labels" not in columns and not chosen

    def targets_of_table(self, table: Table, chosen: Sequence[str] | None) -> TableTargets:
        table.check_labelled(self.name)
        if "labels" in table.columns:
            raise VitrailError(
                f"{shown(table.path)} has a column 'labels'; to learn one class an image, call it 'label'"
            )
        cells = table.text("label")
        empty = [row for row, cell in enumerate(cells) if not cell]
        if empty:
            rows = counted(len(empty), "row has", "rows have")
            raise VitrailError(f"{shown(table.path)}: {rows} no label ({table.places(empty)}): fill in or remove")
        names = sorted(set(cells), key=natural)
        number = {name: index for index, name in enumerate(names)}
        return TableTargets(tuple(names), [number[cell] for cell in cells], _numeric_labels(names))

    def describe(self, dataset: Dataset) -> str:
        classes = counted(len(dataset.labels), *self.label_noun)
        return f"{counted(len(dataset.items), 'image')} in {classes}"

    def target_words(self, item: Item, dataset: Dataset) -> str:
        return "|".join(dataset.labels[number] for number in item.classes()) or "(none)"

    def obstacles(self, dataset: Dataset) -> list[Finding]:
        if len(dataset.labels) < 2 and sum(count > 0 for count in dataset.class_counts("train")) < 2:
            return [_one_class(dataset)]
        return untaught_classes(dataset)

    def check(self, dataset: Dataset, examined: ExaminedItems) -> list[Finding]:
        findings = check_class_counts(dataset, examined.automatic_split, Counted())
        known = len(dataset.labels) > 1 and examined.facts
        given_away = class_given_away(dataset, examined.facts) if known else None
        return findings if given_away is None else [*findings, given_away]

    def summary(self, dataset: Dataset, looks: Sequence[TargetLook | None]) -> dict[str, Any]:
        return counts_by_part(dataset)

    def charts(self, dataset: Dataset, looks: Sequence[TargetLook | None]) -> list[dict[str, Any]]:
        return [class_chart(dataset, "Images of each class")]

    def scene_columns(self, scene: Scene) -> dict[str, Any]:
        return {"label": SHAPES[scene.shapes[0].number]}


# ---- parts


def _numeric_labels(names: Sequence[str]) -> list[Finding]:
    fractions = [name for name in names if (value := as_number(name)) is not None and value % 1]
    if len(fractions) * 2 <= len(names):
        return []
    title = f"the {counted(len(names), 'label')} look like measured numbers ({listing(fractions)})"
    advice = "for numbers to predict use task='regress'; as it is, each is a class of its own"
    return [Finding("numeric-labels", "warning", title, advice, len(names))]


def _one_class(dataset: Dataset) -> Finding:
    label = dataset.labels[0] if dataset.labels else "none"
    advice = "a class is told from others, so add images of a second one, if only of 'other'"
    depth, items = len(dataset.root.parts), dataset.items if dataset.layout == "folders" else ()
    inner = {item.path.parts[depth + 1] for item in items if len(item.path.parts) > depth + 2}
    if len(inner) > 1:
        advice = f"its {len(inner)} folders look like classes, so you may mean {shown(dataset.root / label)}"
    return Finding("one-class", "error", f"there is one class only, {label!r}", advice, len(dataset.items))
