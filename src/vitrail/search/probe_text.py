"""What `vitrail knn` prints."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from vitrail.inference.output.metrics_text import ROWS, cut_label, metric_name
from vitrail.tasks.registry import task_for
from vitrail.tasks.shared.metric_words import over_groups
from vitrail.tasks.task import Task
from vitrail.terminal import table
from vitrail.text import counted, listing, shown

RECALL = ("recall", "AP", "R2")  # what is shown of each label, the first that the task measures


def probe_text(result: Mapping[str, Any]) -> str:
    """The result of `vitrail.knn` for people."""
    labels = [row["label"] for row in result["knn"]["per_label"]]
    task = task_for(result["task"], labels)
    return "\n\n".join([_headline(result), _scores(result, task), _labels(result)])


def _headline(result: Mapping[str, Any]) -> str:
    folds = len(result["compared"]) > 1
    by = "each by those of the other folds" if folds else f"by {counted(result['compared'][0], 'other')}"
    part = f"in {result['part']}" if folds else f"of its {result['part']} part"
    lines = [
        f"{shown(result['model'])} on {counted(result['measured'], 'image')} of {result['data']}, {part}, {by}",
        f"  frozen features, {result['width']} numbers an image; nothing of the model was trained",
    ]
    lines += [f"  {note}" for note in result["notes"]]
    if result["unreadable"]:
        names = listing([shown(row["image"]) for row in result["unreadable"]])
        lines.append(f"  {counted(len(result['unreadable']), 'image')} could not be read and did not count: {names}")
    return "\n".join(lines)


def _scores(result: Mapping[str, Any], task: Task) -> str:
    """The main metric of each probe with its interval, and beside it what else the task watches."""
    main, k = result["knn"]["main_metric"], result["k"]
    others = [name for name in task.quick_names if name != main]
    rows = [["", metric_name(main), "95 % interval", *map(metric_name, others)]]
    for name, probe in ((f"k-NN, k = {k}", result["knn"]), ("linear probe", result["linear"])):
        low_high = probe["intervals"].get(main)
        interval = " to ".join(task.show(main, value) for value in low_high) + over_groups(probe) if low_high else ""
        rows.append([name, task.show(main, probe["metrics"][main]), interval])
        rows[-1] += [task.show(other, probe["metrics"][other]) for other in others]
    for one, metrics in result["by_k"].items():
        if one != str(k):
            rows.append([f"k-NN, k = {one}", task.show(main, metrics[main]), ""])
            rows[-1] += [task.show(other, metrics[other]) for other in others]
    return table(rows)


def _labels(result: Mapping[str, Any]) -> str:
    """A row a label with what each probe makes of it, the worst first."""
    knn, linear = result["knn"]["per_label"], result["linear"]["per_label"]
    metric = next((name for name in RECALL if name in knn[0]), None)
    if metric is None:
        return ""
    known = [pair for pair in zip(knn, linear, strict=True) if pair[0][metric] is not None]
    known.sort(key=lambda pair: pair[0][metric])
    counts = ["support"] if "support" in knn[0] else []
    rows = [[f"{metric_name(metric)}, worst first", *(["images"] if counts else []), "k-NN", "linear probe"]]
    for one, other in known[:ROWS]:
        cells = [cut_label(one["label"]), *(f"{one[name]:,}" for name in counts)]
        rows.append([*cells, f"{one[metric]:.3f}", f"{other[metric]:.3f}"])
    text = table(rows)
    return text if len(known) <= ROWS else f"{text}\n  and {len(known) - ROWS:,} better ones: --json has them all"
