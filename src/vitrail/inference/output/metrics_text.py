"""What `vitrail evaluate` prints: the measures of any task as text that fits a terminal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from vitrail.tasks.registry import task_for
from vitrail.tasks.shared.metric_words import over_groups
from vitrail.tasks.task import Task
from vitrail.terminal import table, width_of
from vitrail.text import counted, listing, shown
from vitrail.weights.familiarity.kept_vectors import UNFAMILIAR

ROWS = 40  # labels that are shown
PAIRS = 10
NAME = 32  # columns that a label may take
NAMES = {"ece": "calibration error (ECE)", "top5_accuracy": "top-5 accuracy", "macro_f1": "macro F1"}
NAMES |= {"micro_f1": "micro F1", "f1": "F1", "iou": "IoU", "boundary_f1": "boundary F1"}
EXPECTED = f"{100 * UNFAMILIAR:g}"  # per cent of pictures like those of training that are called unfamiliar
RANKED = ("iou", "AP50", "f1", "R2")  # by which the worst label comes first


def to_text(result: Mapping[str, Any]) -> str:
    """The result of `evaluate` for people."""
    task = task_for(result["task"], [row["label"] for row in result["per_label"]])
    parts = [_headline(result, task), _metrics(result, task), _labels(result["per_label"], task.support_noun)]
    if result.get("confused_pairs"):
        parts.append(_pairs(result["confused_pairs"], "pixels" if task.dense else "images"))
    return "\n\n".join(parts)


# ---- parts


def _headline(result: Mapping[str, Any], task: Task) -> str:
    main = result["main_metric"]
    lines = [f"{shown(result['model'])} on {counted(result['images'], 'image')} of {result['data']}{_part(result)}"]
    if "precision" in result:
        by = "" if result.get("engine", "torch") == "torch" else f" by {result['engine']}"
        lines.append(f"  computed in {result['precision']}{by}")
    lines += [f"  {note}" for note in result["notes"]]
    if result["unreadable"]:
        names = listing([shown(row["image"]) for row in result["unreadable"]])
        lines.append(f"  {counted(len(result['unreadable']), 'image')} could not be read and did not count: {names}")
    if told := result.get("familiarity"):
        unfamiliar = counted(told["unfamiliar"], "image is", "images are")
        lines.append(
            f"  {unfamiliar} unlike those of training, {100 * told['share']:.1f} % (of the held-out ones {EXPECTED} %)"
        )
    low_high = result["intervals"].get(main)
    interval = f"  (95 % interval {_interval(task, main, low_high)}{over_groups(result)})" if low_high else ""
    return "\n".join([*lines, "", f"{metric_name(main)} {task.show(main, result['metrics'][main])}{interval}"])


def _part(result: Mapping[str, Any]) -> str:
    return "" if result["part"] == "all" else f" (part: {result['part']})"


def _metrics(result: Mapping[str, Any], task: Task) -> str:
    rows = [["", "", "95 % interval"]] if result["intervals"] else []
    for name, value in result["metrics"].items():
        low_high = result["intervals"].get(name)
        rows.append([metric_name(name), task.show(name, value), _interval(task, name, low_high) if low_high else ""])
    return table(rows, header=bool(result["intervals"]))


def _labels(per_label: Sequence[Mapping[str, Any]], support: str) -> str:
    """A row a label, the worst first; a label without images has nothing to show."""
    columns = [name for name, value in per_label[0].items() if not isinstance(value, dict | list)]
    ranked = [name for name in RANKED if name in columns]
    known = [row for row in per_label if row.get(ranked[0]) is not None] if ranked else list(per_label)
    if ranked:
        known.sort(key=lambda row: row[ranked[0]])
    cells = [_column(name, known[:ROWS], support) for name in columns]
    text = table([list(row) for row in zip(*cells, strict=True)])
    if len(known) > ROWS:
        text += f"\n  and {len(known) - ROWS:,} better ones: --json has them all"
    if len(known) < len(per_label):
        text += f"\n  {counted(len(per_label) - len(known), 'label has', 'labels have')} no image here"
    return text


def _column(name: str, rows: Sequence[Mapping[str, Any]], support: str) -> list[str]:
    """The title and the cells, in one form for the whole column so that they can be compared."""
    values = [row[name] for row in rows]
    if name == "label":
        return ["worst first" if len(rows) > 1 else "", *(cut_label(value) for value in values)]
    small = all(abs(value) <= 1 for value in values if isinstance(value, float))
    return [support if name == "support" else metric_name(name), *(_cell(value, small) for value in values)]


def _cell(value: Any, small: bool) -> str:
    if value is None:
        return "-"
    if isinstance(value, int):
        return f"{value:,}"
    return f"{value:.3f}" if small else f"{value:.4g}"


def _pairs(pairs: Sequence[Mapping[str, Any]], what: str) -> str:
    rows = [["most confused", "", "", ""]]
    for pair in pairs[:PAIRS]:
        share = f"{100 * pair['share']:.1f} % of its {what}"
        rows.append([cut_label(pair["truth"]), f"taken for {cut_label(pair['answer'])}", f"{pair['count']:,}", share])
    return table(rows, left=2)


def _interval(task: Task, name: str, low_high: Sequence[float]) -> str:
    return " to ".join(task.show(name, value) for value in low_high)


def metric_name(name: str) -> str:
    """As a line of text has it: `macro F1`."""
    return NAMES.get(name, name.replace("_", " "))


def cut_label(label: str) -> str:
    """At most NAME columns wide."""
    label = shown(label)
    while width_of(label) > NAME:
        label = label[:-2] + "\N{HORIZONTAL ELLIPSIS}"
    return label
