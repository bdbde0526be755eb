"""Real pictures to check an engine on, or to calibrate int8 on: those of the run, of a folder, or those at hand."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from vitrail.data.loading.rng import permutation
from vitrail.dataset import Item, classes_at
from vitrail.errors import VitrailError
from vitrail.images.unreadable import UnreadableImage
from vitrail.inference.backends.torch_backend import TorchBackend
from vitrail.inference.calibration.calibration_file import AT_HAND, MOST, calibration_beside, read_calibration
from vitrail.inference.engine import Engine
from vitrail.inference.evaluation import dataset_for
from vitrail.inference.evaluation_part import choose_part
from vitrail.inference.image_processor import ImageProcessor, ModelInput
from vitrail.inference.label_matching import renumbered, targets_for
from vitrail.inference.read_source import Source
from vitrail.inference.sources import images_of
from vitrail.tasks.dense_task import DenseTask
from vitrail.tasks.targets import LazyTargets
from vitrail.text import counted, shown
from vitrail.threads import in_threads
from vitrail.weights.checkpoint import Checkpoint

WORKERS = 2  # threads that decode a folder
MOST_LOOKED_AT = 100_000  # of the images that a few are chosen from
FEWEST = 12  # for int8: eight calibrate, and what four others lose is the least that can be called measured
MOST_LABELLED = 900  # of a folder: 300 to calibrate on, the others to judge by


@dataclass(frozen=True)
class CalibrationImages:
    """Pictures as `Engine.run` takes them, never none."""

    images: Sequence[ModelInput]
    source: str  # where they are from, in words
    truths: Sequence[Any] | None = None  # what is true of each, as `Task.pseudo_label` gives it; None: nobody knows

    def check_enough(self) -> None:
        """VitrailError where there are too few to calibrate on some and judge by others."""
        if len(self.images) < FEWEST:
            raise VitrailError(
                f"int8 needs {FEWEST} pictures or more, some to be calibrated on and others to be judged by, and here "
                f"are {len(self.images)} ({self.source}): give a folder of pictures like those that the model will see"
            )

    def split(self) -> tuple[CalibrationImages, CalibrationImages]:
        """Two thirds to calibrate on, but 300 at most, and the others; in no order, for the pictures of a run have one
        of each class in turn."""
        self.check_enough()
        count = len(self.images)
        order, fitted = permutation(0, 0, count).tolist(), min(MOST, count - count // 3)
        return self.part(sorted(order[:fitted])), self.part(sorted(order[fitted:]))

    def part(self, indices: Sequence[int]) -> CalibrationImages:
        """Some of them."""
        truths = None if self.truths is None else [self.truths[index] for index in indices]
        return replace(self, images=[self.images[index] for index in indices], truths=truths)


def calibration_images(
    checkpoint: Checkpoint,
    model_path: str | Path | None = None,
    folder: str | Path | None = None,
    fallback: Sequence[ModelInput] = (),
) -> CalibrationImages:
    """Up to 300 pictures, or 900 of a labelled folder: those of the folder if one is given, else those that travel with
    the model (`calibration.zip` beside model_path), else the fallback, which are pictures at hand. VitrailError where
    there are none.
    """
    if folder is not None:
        return _of_folder(checkpoint, Path(folder))
    file = calibration_beside(model_path)
    if file is not None:
        training = checkpoint.provenance.get("training")
        images = read_calibration(file, checkpoint.preprocessing, training if isinstance(training, dict) else None)
        if images:
            return CalibrationImages(images, f"{counted(len(images), 'training picture')} of {shown(file)}")
    if fallback:
        return CalibrationImages(list(fallback[:MOST]), f"{counted(len(fallback[:MOST]), 'picture')} {AT_HAND}")
    raise VitrailError(
        "there are no pictures to calibrate on: no calibration.zip lies beside the model, so give a folder of pictures "
        "like those it will see"
    )


def spread_over_classes(items: Sequence[Item], count: int, seed: int) -> list[int]:
    """The indices of so many items, one of each class in turn; an item with several classes stands for its rarest."""
    order = permutation(seed, 0, len(items))[:MOST_LOOKED_AT].tolist()
    classes = classes_at(items, order)
    frequency = Counter(label for own in classes for label in own)
    groups: dict[int | None, list[int]] = {}
    for index, own in zip(order, classes, strict=True):
        rarest = min(own, key=lambda label: (frequency[label], label), default=None)
        groups.setdefault(rarest, []).append(index)
    turns = [(turn, place, index) for place, group in enumerate(groups.values()) for turn, index in enumerate(group)]
    return [index for _, _, index in sorted(turns)[:count]]


def read_pictures(processor: ImageProcessor, sources: Sequence[Source], workers: int) -> list[ModelInput | None]:
    """These pictures; None for those that cannot be read."""

    def read(source: Source) -> ModelInput | None:
        try:
            return processor.read(source)
        except UnreadableImage:
            return None

    return in_threads(read, sources, workers)


def _of_folder(checkpoint: Checkpoint, folder: Path) -> CalibrationImages:
    """Readable pictures of a folder and of those in it, the same ones every time; with what is true of them where the
    folder is a data set of the model's task."""
    if not folder.is_dir():
        raise VitrailError(f"{shown(folder)} is no folder: give a folder of pictures to calibrate on")
    sources, truths = _labelled(checkpoint, folder) or (_some(images_of(folder)), None)
    processor = ImageProcessor(checkpoint.preprocessing, checkpoint.config.is_dense)
    pictures = read_pictures(processor, sources, WORKERS)
    readable = [index for index, picture in enumerate(pictures) if picture is not None]
    images = [picture for picture in pictures if picture is not None]
    if not images:
        raise VitrailError(f"{shown(folder)} holds no picture that can be read: give another folder to calibrate on")
    noun = "picture" if truths is None else "labelled picture"
    return CalibrationImages(
        images,
        f"{counted(len(images), noun)} of {shown(folder)}",
        None if truths is None else [truths[index] for index in readable],
    )


def _some(paths: Sequence[str | Path]) -> list[Source]:
    return [paths[index] for index in sorted(permutation(0, 0, len(paths))[:MOST].tolist())]


def _labelled(checkpoint: Checkpoint, folder: Path) -> tuple[list[Source], Sequence[Any]] | None:
    """Files and truths of a data set of the model's task, with the model's labels; None where the folder is none."""
    try:
        engine = Engine(checkpoint, TorchBackend(checkpoint.model))
        task, dataset = engine.task, dataset_for(engine, folder)
        if dataset.task != task.name:
            return None
        unseen = choose_part(dataset, "auto", checkpoint.provenance).items
        items = [unseen[index] for index in spread_over_classes(unseen, MOST_LABELLED, seed=0)]
        if isinstance(task, DenseTask):
            targets = renumbered(task.targets(items, (1, 1), 0.0, WORKERS), task, dataset.labels, checkpoint.labels)
            truths: Sequence[Any] = LazyTargets(targets, len(items))
        else:
            truths = targets_for(items, dataset.labels, checkpoint.labels, task.labels_are_columns)
    except VitrailError:  # pictures without labels, or with those of something else
        return None
    return [item.source for item in items], truths
