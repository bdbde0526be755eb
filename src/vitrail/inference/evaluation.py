"""How good a model is on images whose answers are known."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from vitrail.data.checks.perceptual_hash import Signature, signature_of
from vitrail.data.image_groups import group_images
from vitrail.data.layouts.recognise import read_dataset, recognise
from vitrail.dataset import Dataset, Item
from vitrail.errors import VitrailError
from vitrail.images.unreadable import UnreadableImage
from vitrail.inference.backends.int8_record import calibrated_on
from vitrail.inference.engine import Engine
from vitrail.inference.evaluation_part import EvaluationPart, choose_part
from vitrail.inference.image_processor import ModelInput, clipped_note
from vitrail.inference.label_matching import renumbered, targets_for
from vitrail.inference.predictor import Predictor
from vitrail.inference.read_source import name_of
from vitrail.progress import ProgressBar
from vitrail.tasks.dense_options import DenseOptions
from vitrail.tasks.dense_task import DenseTask
from vitrail.tasks.targets import LazyTargets
from vitrail.text import counted, shown
from vitrail.weights.checkpoint import Checkpoint
from vitrail.weights.familiarity.kept_vectors import UNFAMILIAR

LEAST = 24  # of the least familiar images that the result names
MEASURED_IN = "float32"  # the same score on every machine, and the one that a training run reports


def evaluate_dataset(
    predictor: Predictor, dataset: Dataset, *, part: str = "auto", bootstrap: int = 1000
) -> dict[str, Any]:
    """What the model's task measures (`Task.evaluate`), on the readable images of a part of the dataset.

    part: train, val, test or all; auto is test, else val, else what training held out of this very data, else all.
    bootstrap: resamples of the 95 % intervals.
    Besides the metrics, the result has data, part, engine, precision, unreadable (image and error of each) and notes.
    """
    checkpoint, task = predictor.engine.checkpoint, predictor.engine.task
    if dataset.task != task.name:
        raise VitrailError(f"the model's task is {task.name}, the data is for {dataset.task}")
    subset = choose_part(dataset, part, checkpoint.provenance)
    seen = SeenImages()
    if isinstance(task, DenseTask):
        data_targets = task.targets(subset.items, (1, 1), 0.0, predictor.workers)
        dense_targets = renumbered(data_targets, task, dataset.labels, checkpoint.labels)
        rows = _run_images(
            predictor, subset.items, seen, lambda index, decoded: task.compare(decoded, dense_targets.own(index))
        )
        targets = task.encode(LazyTargets(dense_targets, rows.indices))
    else:
        named = targets_for(subset.items, dataset.labels, checkpoint.labels, task.labels_are_columns)
        rows = _run_images(predictor, subset.items, seen)
        targets = task.encode([named[index] for index in rows.indices])
    groups = group_images(
        [subset.items[index] for index in rows.indices], [seen.signatures[index] for index in rows.indices]
    )
    result = task.evaluate(rows.outputs, targets, bootstrap=bootstrap, groups=groups)
    for miss in result["worst"]:
        miss["image"] = str(subset.items[rows.indices[miss["index"]]].path)
    findings = [finding.title for finding in dataset.findings if finding.severity in ("error", "warning")]
    return result | {
        "data": shown(dataset.address),
        "part": subset.part,
        "engine": predictor.engine.backend.name,
        "precision": predictor.engine.backend.precision,
        "unreadable": rows.unreadable,
        "familiarity": _familiarity(predictor.engine, subset.items, rows),
        "notes": [*subset.notes, *findings, *result.get("notes", ()), *_notes(result, subset, predictor.engine, seen)],
    }


def dataset_for(
    engine: Engine, data: str | Path, layout: str | None = None, dense: DenseOptions | None = None
) -> Dataset:
    """The data, read as the model's task.

    dense: what masks and boxes mean; by default as in training. Of a table's numbers only those that the model predicts
    are read.
    """
    task, path = engine.task, Path(data)
    if task.labels_are_columns and (path.is_file() or (path.is_dir() and (layout or recognise(path)) == "table")):
        return read_dataset(path, layout=layout, task=task.name, targets=task.labels)
    dense = dense or _as_in_training(engine.checkpoint)
    return read_dataset(data, layout=layout, task=task.name, dense=dense, manifests=True)


def _as_in_training(checkpoint: Checkpoint) -> DenseOptions:
    """The value of pixels that do not count, as the training run had it."""
    training = checkpoint.provenance.get("training")
    ignore = training.get("ignore") if isinstance(training, dict) else None
    return DenseOptions(ignore=ignore if isinstance(ignore, int) and -1 <= ignore <= 255 else -1)


def _notes(result: dict[str, Any], subset: EvaluationPart, engine: Engine, seen: SeenImages) -> list[str]:
    """What is to be known beside the numbers."""
    checkpoint = engine.checkpoint
    notes = []
    int8 = getattr(engine.backend, "int8", None)
    if int8:
        notes.append(calibrated_on(int8, [item.path for item in subset.items]))
    if "threshold" in result and subset.part == "val" and "training" in checkpoint.provenance:
        notes.append(
            f"the threshold {result['threshold']:.2f} of precision, recall and F1 was chosen on the validation images "
            "of training: on the same images they are flattered"
        )
    if seen.clipped:
        notes.append(clipped_note(len(seen.clipped), checkpoint.preprocessing.bits))
    return notes


def _familiarity(engine: Engine, items: Sequence[Item], images: EvaluatedImages) -> dict[str, Any] | None:
    """How many of the images are unlike those of training, and the least familiar; None: the file does not tell."""
    if engine.familiarity is None:
        return None
    scores = engine.familiarity.scores(torch.stack(list(images.pooled.values())).numpy()).tolist()
    ranked = sorted(zip(scores, images.pooled, strict=True))
    unfamiliar = sum(score < UNFAMILIAR for score in scores)
    return {
        "unfamiliar": unfamiliar,
        "share": unfamiliar / len(scores),
        "least": [{"image": str(items[index].path), "familiarity": round(score, 4)} for score, index in ranked[:LEAST]],
    }


class SeenImages:
    """What is kept of each image while the model runs on it, by its place among the items."""

    def __init__(self) -> None:
        self.signatures: dict[int, Signature] = {}
        self.clipped: set[int] = set()

    def look(self, index: int, image: ModelInput) -> None:
        """Called in the threads that read."""
        self.signatures[index] = signature_of(image.pixels)
        if image.clipped:
            self.clipped.add(index)


class EvaluatedImages(NamedTuple):
    """The model's outputs for the images of a part."""

    outputs: Tensor  # (M, ...), of the readable images
    indices: list[int]  # (M,), theirs among the items
    unreadable: list[dict[str, str]]  # image and error of each of the others
    pooled: dict[int, Tensor]  # (D,) what the head reads of the images, where the model's file tells what is familiar


def _run_images(
    predictor: Predictor,
    items: Sequence[Item],
    seen: SeenImages,
    reduce: Callable[[int, Tensor], Tensor] | None = None,
) -> EvaluatedImages:
    """Run the model on all items. `reduce`: (index, decoded outputs) -> the row that is kept; None: the outputs."""
    outputs, indices, unreadable = [], [], []
    vectors: list[Tensor] = []  # of the images that could be read so far, and of some more of the same batch
    read: list[int] = []
    with ProgressBar("measuring", len(items)) as bar:
        sources = (item.source for item in items)
        for index, (source, output) in enumerate(predictor.outputs(sources, seen.look, pooled=vectors)):
            try:
                if isinstance(output, UnreadableImage):
                    raise output
                read.append(index)
                outputs.append(output if reduce is None else reduce(index, output))
                indices.append(index)
            except UnreadableImage as error:  # the image, or the mask that says what is true
                unreadable.append({"image": name_of(source), "error": str(error)})
            bar.step()
    if not outputs:
        why = unreadable[0]["error"].removeprefix(unreadable[0]["image"]).strip()  # a part has at least one image
        raise VitrailError(f"none of {counted(len(items), 'image')} could be read, the first because it {why}")
    return EvaluatedImages(torch.stack(outputs), indices, unreadable, dict(zip(read, vectors, strict=False)))
