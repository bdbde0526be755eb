"""`vitrail.evaluate`: how good a model is on images whose answers are known."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from vitrail.data.collection import Collection, Item
from vitrail.data.layouts import collect, recognise
from vitrail.data.names import counted, shown
from vitrail.data.unreadable import UnreadableImage
from vitrail.errors import VitrailError
from vitrail.infer.naming import targets_for
from vitrail.infer.opening import open_model, task_of
from vitrail.infer.parts import choose
from vitrail.infer.predictor import Predictor
from vitrail.infer.progress import Counter
from vitrail.weights.checkpoint import Checkpoint


def evaluate(
    model: str | Path | Checkpoint,
    data: str | Path | Collection,
    *,
    part: str = "auto",
    layout: str | None = None,
    task: str | None = None,
    bootstrap: int = 1000,
    batch_size: int | None = None,
    workers: int = 2,
    device: str = "auto",
) -> dict[str, Any]:
    """What the model's task measures (`Task.evaluate`), on the readable images of a part of the data.

    part: train, val, test or all; auto is test, else val, else what training held out of this very data, else all.
    layout, task: how the data is read, where it is not recognised. bootstrap: resamples of the 95 % intervals.
    Besides the measures, the result has model, data, part, unreadable (image and error of each) and notes.
    """
    checkpoint = model if isinstance(model, Checkpoint) else open_model(model)
    meaning = task_of(checkpoint)
    if task not in (None, meaning.name):
        raise VitrailError(f"the model's task is {meaning.name}, not {task}: give data for {meaning.name}")
    collection = data if isinstance(data, Collection) else _collected(data, layout, meaning.name, meaning.labels)
    if collection.task != meaning.name:
        raise VitrailError(f"the model's task is {meaning.name}, the data is for {collection.task}")
    chosen = choose(collection, part, checkpoint.provenance)
    targets = targets_for(chosen.items, collection.labels, checkpoint.labels, meaning.name == "regress")
    predictor = Predictor(checkpoint, batch_size=batch_size, workers=workers, device=device)
    outputs, read, unreadable = _measured(predictor, chosen.items)
    result = meaning.evaluate(outputs, meaning.encode([targets[place] for place in read]), bootstrap=bootstrap)
    for miss in result["worst"]:
        miss["image"] = str(chosen.items[read[miss["index"]]].path)
    findings = [finding.title for finding in collection.findings if finding.severity in ("error", "warning")]
    return result | {
        "model": "the model" if isinstance(model, Checkpoint) else str(model),
        "data": shown(collection.table or collection.root),
        "part": chosen.part,
        "unreadable": unreadable,
        "notes": [*chosen.notes, *findings],
    }


def _collected(data: str | Path, layout: str | None, task: str, labels: Sequence[str]) -> Collection:
    """The data, read as the model's task. Of a table's numbers, those that the model predicts are all that is asked."""
    path = Path(data)
    if task == "regress" and (path.is_file() or (path.is_dir() and (layout or recognise(path)) == "table")):
        return collect(path, layout=layout, task=task, targets=labels)
    return collect(path, layout=layout, task=task)


def _measured(predictor: Predictor, items: Sequence[Item]) -> tuple[Tensor, list[int], list[dict[str, str]]]:
    """Outputs (M, K) of the readable images, their places among the items, and a row for each other image."""
    outputs, read, unreadable = [], [], []
    with Counter(len(items)) as counter:
        for place, (source, output) in enumerate(predictor.outputs(item.path for item in items)):
            if isinstance(output, UnreadableImage):
                unreadable.append({"image": str(source), "error": str(output)})
            else:
                outputs.append(output)
                read.append(place)
            counter.step()
    if not outputs:
        why = unreadable[0]["error"].removeprefix(unreadable[0]["image"]).strip()  # a part has at least one image
        raise VitrailError(f"none of {counted(len(items), 'image')} could be read, the first because it {why}")
    return torch.stack(outputs), read, unreadable
