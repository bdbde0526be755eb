"""`vitrail.evaluate`: how good a model is on images whose answers are known."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from vitrail.data.collection import Collection, Item
from vitrail.data.dense_options import DenseOptions
from vitrail.data.layouts import collect, recognise
from vitrail.data.names import counted, shown
from vitrail.data.truths import Some, dense_truths
from vitrail.data.unreadable import UnreadableImage
from vitrail.errors import VitrailError
from vitrail.infer.naming import renamed, targets_for
from vitrail.infer.opening import open_model, task_of
from vitrail.infer.parts import choose
from vitrail.infer.predictor import Predictor
from vitrail.infer.progress import Counter
from vitrail.tasks.dense import Dense
from vitrail.tasks.task import Task
from vitrail.weights.checkpoint import Checkpoint


def evaluate(
    model: str | Path | Checkpoint,
    data: str | Path | Collection,
    *,
    part: str = "auto",
    layout: str | None = None,
    task: str | None = None,
    dense: DenseOptions | None = None,
    bootstrap: int = 1000,
    batch_size: int | None = None,
    workers: int = 2,
    device: str = "auto",
) -> dict[str, Any]:
    """What the model's task measures (`Task.evaluate`), on the readable images of a part of the data.

    part: train, val, test or all; auto is test, else val, else what training held out of this very data, else all.
    layout, task: how the data is read, where it is not recognised. dense: what masks and boxes mean, where the files do
    not say it; by default as it was said in training. bootstrap: resamples of the 95 % intervals.
    Besides the measures, the result has model, data, part, unreadable (image and error of each) and notes.
    """
    checkpoint = model if isinstance(model, Checkpoint) else open_model(model)
    meaning = task_of(checkpoint)
    if task not in (None, meaning.name):
        raise VitrailError(f"the model's task is {meaning.name}, not {task}: give data for {meaning.name}")
    dense = dense or _as_in_training(checkpoint)
    collection = data if isinstance(data, Collection) else _collected(data, layout, meaning, dense)
    if collection.task != meaning.name:
        raise VitrailError(f"the model's task is {meaning.name}, the data is for {collection.task}")
    chosen = choose(collection, part, checkpoint.provenance)
    predictor = Predictor(checkpoint, batch_size=batch_size, workers=workers, device=device)
    if isinstance(meaning, Dense):
        truths = renamed(dense_truths(chosen.items, (1, 1), 0.0, workers), collection.labels, checkpoint.labels)
        outputs, read, unreadable = _measured(
            predictor, chosen.items, lambda place, decoded: meaning.compare(decoded, truths.own(place))
        )
        encoded = meaning.encode(Some(truths, read))
    else:
        targets = targets_for(chosen.items, collection.labels, checkpoint.labels, meaning.name == "regress")
        outputs, read, unreadable = _measured(predictor, chosen.items)
        encoded = meaning.encode([targets[place] for place in read])
    result = meaning.evaluate(outputs, encoded, bootstrap=bootstrap)
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


def _as_in_training(checkpoint: Checkpoint) -> DenseOptions:
    """The value of pixels that do not count, as the training run was told."""
    kept = checkpoint.provenance.get("training")
    ignore = kept.get("ignore") if isinstance(kept, dict) else None
    return DenseOptions(ignore=ignore if isinstance(ignore, int) and -1 <= ignore <= 255 else -1)


def _collected(data: str | Path, layout: str | None, meaning: Task, dense: DenseOptions) -> Collection:
    """The data, read as the model's task. Of a table's numbers, those that the model predicts are all that is asked."""
    path, task, labels = Path(data), meaning.name, meaning.labels
    if task == "regress" and (path.is_file() or (path.is_dir() and (layout or recognise(path)) == "table")):
        return collect(path, layout=layout, task=task, targets=labels)
    return collect(path, layout=layout, task=task, dense=dense)


def _measured(
    predictor: Predictor, items: Sequence[Item], kept: Callable[[int, Tensor], Tensor] = lambda place, output: output
) -> tuple[Tensor, list[int], list[dict[str, str]]]:
    """What is `kept` of the outputs of the readable images, (M, ...), their places among the items, and a row for each
    other image."""
    outputs, read, unreadable = [], [], []
    with Counter(len(items)) as counter:
        for place, (source, output) in enumerate(predictor.outputs(item.path for item in items)):
            try:
                if isinstance(output, UnreadableImage):
                    raise output
                outputs.append(kept(place, output))
                read.append(place)
            except UnreadableImage as error:  # the image, or the mask that says what is true
                unreadable.append({"image": str(source), "error": str(error)})
            counter.step()
    if not outputs:
        why = unreadable[0]["error"].removeprefix(unreadable[0]["image"]).strip()  # a part has at least one image
        raise VitrailError(f"none of {counted(len(items), 'image')} could be read, the first because it {why}")
    return torch.stack(outputs), read, unreadable
