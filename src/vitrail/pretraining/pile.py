"""From DATA to the images that a network learns from without labels: any folder of pictures, or any labelled layout.

Labels, where each image has one class, serve only to tell how well it goes. A test part is left alone: a model that has
seen its images, even without their labels, is not measured by them any more.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from vitrail.data.checks.check_dataset import CheckReport, check_dataset
from vitrail.data.layouts.layout_names import FOLDERS
from vitrail.data.layouts.recognise import read_dataset, recognise, refuse_manifest
from vitrail.dataset import Dataset, Item, split_name
from vitrail.errors import VitrailError
from vitrail.findings import Finding
from vitrail.images.listing import scan, subfolders
from vitrail.tasks.registry import DEFAULT_TASK, task_class
from vitrail.text import counted, shown
from vitrail.training.run_context import Run
from vitrail.training.settings import Data
from vitrail.training.stages.read_data import TrainingData, say_findings, training_data

UNLABELLED = "without labels"  # the one class of images that have none
HOLDOUT, MOST_HELD_OUT = 0.1, 2000  # the part of the images that only measures, and how many at most
FEWEST = 4  # images
OF_LABELS = (  # what a check says about labels, which does not matter here
    *("one-class", "given-away", "numeric-labels", "class-not-in-train", "few-images", "unequal-classes"),
    *("class-not-in-val", "empty-class", "unnamed-classes"),
)


@dataclass(frozen=True)
class PileData(TrainingData):
    """The images of a run without labels. Its dataset counts as one for classification, with one class or several."""

    @property
    def is_labelled(self) -> bool:
        """Whether there are classes that neighbours can be compared by."""
        return len(self.dataset.labels) > 1

    def checked(self, dataset: Dataset) -> Dataset:
        """One class, or none, is enough here."""
        return enough(dataset)


def read_pile(run: Run) -> PileData:
    """The main process reads and checks DATA, for all."""
    return run.processes.from_main(lambda: prepare_pile(run))


def prepare_pile(run: Run) -> PileData:
    """Read DATA, look at every file's header, and say what was found."""
    settings, seed = run.settings.data, run.settings.train.seed
    dataset = pile_dataset(Path(run.request.data), settings)
    count = len(dataset.part("train"))
    holdout = None if dataset.has_validation else settings.validation or min(HOLDOUT, MOST_HELD_OUT / max(1, count))
    counter = run.progress.counter("looking at images")
    report = check_dataset(dataset, fast=True, fraction=holdout, seed=seed, progress=counter)
    report = replace(report, description=describe(dataset, holdout), findings=_of_files(report))
    say_findings(report.description, report.findings, dataset.root, run.progress)
    readable = tuple(item for item in report.dataset.items if item.path not in report.broken)
    known = training_data(report, enough(report.dataset.replace(items=readable)), holdout)
    return PileData(**{name: getattr(known, name) for name in TrainingData.__dataclass_fields__})


def pile_dataset(path: Path, settings: Data) -> Dataset:
    """The images of DATA with their classes, or with the one that stands for none; without those of a test part."""
    refuse_manifest(path)
    if settings.layout is None and path.is_dir() and not has_labels(path):
        return without_labels(path, images_below(path))
    dataset = read_dataset(path, layout=settings.layout, task=settings.task)
    kept = tuple(item for item in dataset.items if item.split != "test")
    if not task_class(dataset.task).one_class_each:
        return without_labels(dataset.root, kept)
    return dataset.replace(items=kept)


def has_labels(root: Path) -> bool:
    """Whether a folder is a labelled layout: class folders only where all images lie in one, and there are several."""
    layout = recognise(root)
    if layout not in FOLDERS:
        return True
    parts = [root] if layout == "folders" else [part for part in subfolders(root) if split_name(part.name)]
    classes = {folder.name for part in parts for folder in subfolders(part) if scan(folder).images}
    return len(classes) > 1 and not any(scan(part, deep=False).images for part in (root, *parts))


def images_below(root: Path) -> tuple[Item, ...]:
    """Every image of a folder and of all folders in it; those below train, val and test keep their part."""
    items = []
    for path in sorted(scan(root).images):
        inside = path.relative_to(root).parts
        split = split_name(inside[0]) if len(inside) > 1 else None
        if split != "test":
            items.append(Item(path, 0, split))
    if not items:
        raise VitrailError(f"{shown(root)} holds no images to learn from")
    if all(item.split == "val" for item in items):
        items = [replace(item, split=None) for item in items]
    return tuple(items)


def without_labels(root: Path, items: tuple[Item, ...]) -> Dataset:
    """These images, all of one class that says nothing."""
    plain = tuple(replace(item, target=0) for item in items)
    return Dataset(root=root, layout="folders", task=DEFAULT_TASK, labels=(UNLABELLED,), items=plain)


def describe(dataset: Dataset, holdout: float | None) -> str:
    """The one line that says what was read and how it was taken."""
    classes = len(dataset.labels)
    labels = f"of {counted(classes, 'class', 'classes')}, which only measure" if classes > 1 else UNLABELLED
    held_out = f", {100 * holdout:.3g} % held out to measure by" if holdout is not None else ""
    return f"{counted(len(dataset.items), 'image')} {labels}{held_out}"


def enough(dataset: Dataset) -> Dataset:
    """The dataset itself, where there is something to learn from and something to measure by."""
    train, held_out = len(dataset.part("train")), len(dataset.part("val"))
    if train < FEWEST or not held_out:
        raise VitrailError(
            f"{shown(dataset.root)}: {counted(train, 'image')} to learn from and {held_out} to measure by are too few; "
            "add more images"
        )
    return dataset


def _of_files(report: CheckReport) -> tuple[Finding, ...]:
    """What was found about files, and not about labels."""
    return tuple(finding for finding in report.findings if finding.kind not in OF_LABELS)
