"""`vitrail check --model`: what a model makes of the images, asked whether their labels are right."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from vitrail.data.checks.check_dataset import CheckReport
from vitrail.data.checks.examine import Examined
from vitrail.data.checks.perceptual_hash import Signature
from vitrail.data.image_groups import group_images
from vitrail.data.loading.split import make_units
from vitrail.dataset import Item
from vitrail.errors import VitrailError
from vitrail.findings import by_weight
from vitrail.inference.evaluation_part import COPIES, TrainingRecord
from vitrail.search.embeddings import Embedder
from vitrail.search.labels.label_errors import FEWEST, finding_of, label_errors
from vitrail.search.labels.out_of_fold import out_of_fold_probabilities
from vitrail.search.pile.image_vectors import image_vectors
from vitrail.search.probe_dataset import LabelledVectors
from vitrail.tasks.registry import task_for
from vitrail.text import counted, shown

LEARNT = "; the model was trained on these images, so wrong labels that it learnt by heart stay hidden"


def with_label_errors(
    report: CheckReport, embedder: Embedder, embeddings: str | Path | None = None, quiet: bool = False
) -> CheckReport:
    """The report with a finding about labels that are probably wrong, and the list of all of them.

    embeddings: a file of `vitrail embed` by the same model, with vectors that need not be computed again.
    Images that look the same count as one: none speaks for another's label."""
    dataset = report.dataset
    pairs = zip(dataset.items, report.examined, strict=True)
    usable = [(item, image) for item, image in pairs if item.path not in report.broken]
    if len(usable) < FEWEST:
        raise VitrailError(
            f"{shown(dataset.root)} has {counted(len(usable), 'readable image')}, too few to say which labels are wrong"
        )
    vectors, places, _ = image_vectors(embedder, [item.path for item, _ in usable], embeddings, quiet)
    read = [usable[place] for place in places]
    items = [item for item, _ in read]
    units = _units(read)
    if len(set(units)) < 2:
        raise VitrailError(
            f"all images of {shown(dataset.root)} look the same or are one group, so none speaks for another's label: "
            "leave out --model"
        )
    data = LabelledVectors(vectors, items, task_for(dataset.task, dataset.labels), units)
    errors = label_errors(dataset.task, items, dataset.labels, out_of_fold_probabilities(data))
    record = TrainingRecord.read(embedder.checkpoint.provenance)
    learnt = record.share_of([image.digest for _, image in read]) > COPIES
    findings = finding_of(errors, len(items), "the model", LEARNT if learnt else "")
    return replace(
        report,
        findings=by_weight([*report.findings, *findings]),
        label_errors=tuple(error.to_dict(dataset.root) for error in errors),
    )


def _units(images: list[tuple[Item, Examined]]) -> list[int]:
    """The number of each image's unit: copies, images that look the same, and groups of the data are one."""
    items = [item for item, _ in images]
    signatures = [Signature(image.hash, image.small) for _, image in images if image.small is not None]
    if len(signatures) == len(items):
        return group_images(items, signatures) or list(range(len(items)))
    units, _ = make_units([image.digest for _, image in images], [item.group for item in items], seed=0)
    return units
