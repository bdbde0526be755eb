"""From DATA to what a run works on: the images that can be learnt from, split into parts, and what is known of them."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median

from vitrail.data.checks.check_dataset import CheckReport, check_dataset
from vitrail.data.checks.examine import common_depth
from vitrail.data.description import trainable
from vitrail.data.layouts.recognise import read_dataset
from vitrail.dataset import Dataset, Item, targets_in
from vitrail.errors import VitrailError
from vitrail.findings import Finding, by_weight, single
from vitrail.images.decode import channels_of
from vitrail.images.unreadable import UnreadableImage
from vitrail.tasks.dense_options import DenseOptions
from vitrail.tasks.registry import task_class, task_for
from vitrail.tasks.task import Task
from vitrail.text import counted, shown
from vitrail.threads import usable_cores
from vitrail.training.choices.compatibility import check_balanced
from vitrail.training.choices.facts import Facts
from vitrail.training.run_context import Run
from vitrail.training.run_log import RunLog
from vitrail.training.settings import Data, Settings

SAMPLE = 64  # digests of training images that the model file carries, so that `evaluate` knows them again
GREY = ("1", "L", "LA", "I", "I;16", "I;16B", "I;16L", "F")  # of Pillow's modes
NAMED = 3  # broken files that are named on the screen; the report names all


@dataclass(frozen=True)
class TrainingData:
    """The dataset of a run and what the fast check knows of it."""

    dataset: Dataset  # without the broken files
    description: str
    findings: tuple[Finding, ...]
    fingerprint: str  # of the images and what is to be learnt from them
    sample: list[str]
    holdout: float | None  # the fraction of train that became the validation part; None: DATA has its own
    sizes: tuple[int, int]  # median height and width
    grey: bool
    channels: int
    bits: int | None = None  # in use of images with more than 8 a channel (see Preprocessing)

    @property
    def train(self) -> Sequence[Item]:
        return self.dataset.part("train")

    def checked(self, dataset: Dataset) -> Dataset:
        """The dataset itself, or the one sentence that says why nothing can be learnt from it."""
        return trainable(dataset)

    def without(self, broken: Mapping[Path, UnreadableImage]) -> TrainingData:
        """The rest, when decoding showed that some are broken after all."""
        if not broken:
            return self
        title = f"{counted(len(broken), 'file')} turned out to be broken"
        advice = "mend or replace them: they were left out"
        finding = Finding("broken", "warning", title, advice, len(broken), single(broken))
        return replace(
            self,
            dataset=self.checked(self.dataset.without(broken)),
            findings=by_weight([*self.findings, finding]),
            fingerprint=hashlib.sha256(f"{self.fingerprint} {sorted(map(str, broken))}".encode()).hexdigest()[:32],
        )

    def facts(self, device: str, minutes: float | None) -> Facts:
        """What the choices look at."""
        finds_objects = task_class(self.dataset.task).finds_objects
        return Facts(
            images=len(self.train),
            height=self.sizes[0],
            width=self.sizes[1],
            grey=self.grey,
            channels=self.channels,
            labels=self.dataset.labels,
            task=self.dataset.task,
            cores=usable_cores(),
            device=device,
            minutes=minutes,
            named=all(finding.kind != "unnamed-classes" for finding in self.dataset.findings),
            objects=max((len(item.classes()) for item in self.train), default=0) if finds_objects else 0,
        )


def read_data(run: Run) -> TrainingData:
    """The main process reads and checks DATA, for all."""
    settings = run.settings
    return run.processes.from_main(
        lambda: prepare_data(run.request.data, settings.data, settings.train.seed, run.progress)
    )


def make_task(data: TrainingData, settings: Settings) -> Task:
    """The task of the dataset, fitted to its training targets; dense ones when these have been read."""
    task = task_for(data.dataset.task, data.dataset.labels, settings.train.class_weights)
    if not task.dense:
        task.fit(targets_in(data.train))
    check_balanced(settings, task)
    return task


def prepare_data(data: str, settings: Data, seed: int, progress: RunLog) -> TrainingData:
    """Read DATA, run the fast part of `vitrail check`, and say what it found."""
    options = DenseOptions(
        classes=settings.classes or "",
        colours=settings.colours or "",
        ignore=-1 if settings.ignore is None else settings.ignore,
        pairs=settings.pairs or "",
    )
    columns = None if settings.targets is None else [name.strip() for name in settings.targets.split(",")]
    dataset = read_dataset(
        data, layout=settings.layout, task=settings.task, targets=columns, dense=options, manifests=True
    )
    holdout = None if dataset.has_validation else settings.validation or dataset.usual_holdout
    counter = progress.counter("looking at images")
    report = check_dataset(dataset, fast=True, fraction=holdout, seed=seed, progress=counter)
    say_findings(report.description, report.findings, dataset.root, progress)
    readable = report.dataset.without(report.broken)
    if not readable.items:
        raise VitrailError(f"{shown(dataset.root)}: none of the {counted(len(report.broken), 'image')} can be read")
    usable = trainable(readable)
    if not usable.part("val"):
        raise VitrailError(
            f"{shown(dataset.root)}: no image could be held out to measure the model on; add more images"
        )
    return training_data(report, usable, holdout)


def say_findings(description: str, findings: Sequence[Finding], root: Path, progress: RunLog) -> None:
    """What the data was taken as, and what is worth a look."""
    progress.say(f"data: {description}")
    for finding in findings:
        if finding.severity != "note":
            names = [shown(file, root) for example in finding.examples[:NAMED] for file in example.files[:1]]
            progress.say(f"  {finding.severity}: {finding.title}{': ' + ', '.join(names) if names else ''}")


def training_data(report: CheckReport, usable: Dataset, holdout: float | None) -> TrainingData:
    """What the fast check knows of the images that can be used."""
    headers = [image.facts for image in report.examined if image.facts is not None and image.problem is None]
    digests = {image.path: image.digest.hex() for image in report.examined}
    rows = [f"{digests[item.path]} {item.target} {item.split}" for item in usable.items]
    modes = {header.mode for header in headers}
    return TrainingData(
        dataset=usable,
        description=report.description,
        findings=report.findings,
        fingerprint=hashlib.sha256("\n".join(rows).encode()).hexdigest()[:32],
        sample=sorted({digests[item.path] for item in usable.part("train")})[:SAMPLE],
        holdout=holdout,
        sizes=(round(median(header.height for header in headers)), round(median(header.width for header in headers))),
        grey=all_grey(modes),
        channels=min(map(channels_of, modes), default=3),
        bits=common_depth(report.examined),
    )


def all_grey(modes: Collection[str]) -> bool:
    """Whether images of these modes show no colour."""
    return all(mode in GREY or mode.endswith(" x 1") for mode in modes)
