"""From a manifest of more images than fit into memory, even as paths, to what a run works on."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from vitrail.data.description import describe, trainable
from vitrail.data.layouts.manifest_layout import check_manifest, manifest_dataset
from vitrail.data.layouts.recognise import check_manifest_fits
from vitrail.data.manifest.manifest_file import Manifest, is_manifest, open_manifest
from vitrail.data.manifest.manifest_items import ManifestItems
from vitrail.data.manifest.survey import NO_CLASS, NO_PART, Records, Survey, held_out, look_at_shard
from vitrail.dataset import SPLITS, Dataset, ItemsByPart
from vitrail.errors import VitrailError
from vitrail.findings import Example, Finding, by_weight
from vitrail.images.unreadable import UnreadableImage
from vitrail.progress import Progress
from vitrail.tasks.registry import task_data
from vitrail.tasks.task_data import ExaminedItems
from vitrail.text import counted, shown
from vitrail.training.run_context import Run
from vitrail.training.settings import Settings
from vitrail.training.stages.read_data import SAMPLE, TrainingData, all_grey, say_findings

MOST_HELD_OUT = 50_000  # images that are held out without being asked for: they are kept as items
NAMED = 20  # images of other channels


def read_large_manifest(run: Run) -> TrainingData | None:
    """None where DATA is anything else. The main process looks at the images, shard by shard, so that none of the
    others waits for long."""
    manifest = run.processes.from_main(lambda: large_manifest(run.request.data, run.settings))
    if manifest is None:
        return None
    survey, seed = Survey(), run.settings.train.seed
    counter = run.progress.counter("looking at images")
    for number, shard in enumerate(manifest.shards):
        before = number * manifest.shard_size
        tell = None if counter is None else partial(show_progress, counter, before, manifest.images)
        survey.add(run.processes.from_main(partial(look_at_shard, manifest, shard, seed, tell)))
    return training_data_of(run, manifest, survey)


def show_progress(counter: Progress, before: int, images: int, done: int, _: int) -> None:
    """Of a shard's images so many are done, of all so many more."""
    counter(before + done, images)


def large_manifest(data: str, settings: Settings) -> Manifest | None:
    """The manifest that DATA is, if it is a large one."""
    if not is_manifest(data):
        return None
    manifest = open_manifest(data)
    if manifest.images <= settings.data.manifest_items:
        return None
    check_manifest_fits(data, settings.data.layout, settings.data.targets)
    check_manifest(manifest, settings.data.task)
    if settings.train.balanced:
        raise VitrailError(
            f"train.balanced draws images from anywhere, and {shown(data)} has {manifest.images:,}: set "
            "train.class_weights instead"
        )
    return manifest


def training_data_of(run: Run, manifest: Manifest, survey: Survey) -> TrainingData:
    """The parts of the images that can be learnt from, by the numbers that are known of each."""
    labels, records = survey.in_order()
    labelled = records["target"] != NO_CLASS
    given = np.where(records["split"] == NO_PART, 0, records["split"])  # what has no part counts as train
    whole = manifest_dataset(manifest, labels, in_parts(manifest, records, given, labelled), ())
    if not survey.sizes:
        raise VitrailError(f"{shown(manifest.path)}: none of the {counted(int(labelled.sum()), 'image')} can be read")
    channels = int(records["channels"][records["channels"] > 0].min())
    odd = other_channels(records, channels)
    records["broken"] |= odd
    holdout = None if whole.has_validation else run.settings.data.validation or usual_holdout(whole)
    part = given if holdout is None else divided(records, given, labelled, holdout)
    usable = labelled & ~records["broken"]
    items = in_parts(manifest, records, part, usable)
    # Held-out images are few. As items they can still be left out, where one does not suit the model.
    items = ItemsByPart({split: some if split == "train" else tuple(some) for split, some in items.parts.items()})
    dataset = manifest_dataset(manifest, labels, items, ())
    findings = findings_of(survey, records, named(manifest, survey, records, odd), dataset, holdout is not None)
    description = describe(whole, holdout)
    say_findings(description, findings, dataset.root, run.progress)
    dataset = trainable(dataset.replace(findings=findings))
    if not dataset.part("val"):
        raise VitrailError(f"{shown(manifest.path)}: no image could be held out to measure the model on; add more")
    learnt = usable & (part == 0)
    return TrainingData(
        dataset=dataset,
        description=description,
        findings=findings,
        fingerprint=fingerprint_of(labels, records["number"][usable], records["target"][usable], part[usable]),
        sample=[digest.hex() for digest, place in survey.digests if learnt[place]][:SAMPLE],
        holdout=holdout,
        sizes=survey.usual_size,
        grey=all_grey(survey.modes),
        channels=channels,
        bits=survey.bits,
    )


def usual_holdout(whole: Dataset) -> float:
    """The part of train that is held out where nobody says how much."""
    return min(whole.usual_holdout, MOST_HELD_OUT / max(1, len(whole.part("train"))))


def divided(
    records: Records, given: NDArray[np.int8], labelled: NDArray[np.bool_], fraction: float
) -> NDArray[np.int8]:
    """(N,) the part of each image, a fraction of train being held out for validation."""
    part, free = given.copy(), np.flatnonzero(labelled & (given == 0))
    part[free[held_out(records[free], fraction)]] = SPLITS.index("val")
    return part


def in_parts(manifest: Manifest, records: Records, part: NDArray[np.int8], chosen: NDArray[np.bool_]) -> ItemsByPart:
    """The chosen images in their parts."""
    parts = {}
    for number, split in enumerate(SPLITS):
        if (places := np.flatnonzero(chosen & (part == number))).size:
            parts[split] = items_at(manifest, records, places, split)
    return ItemsByPart(parts)


def items_at(manifest: Manifest, records: Records, places: NDArray[np.int64], split: str) -> ManifestItems:
    """The images of these places."""
    group = np.cumsum(~records["together"])[places]
    shard = places // manifest.shard_size
    together = np.zeros(len(places), np.bool_)
    together[1:] = (np.diff(group) == 0) & (np.diff(shard) == 0)
    return ManifestItems(manifest, places.astype(np.uint32), records["target"][places], together, split)


def other_channels(records: Records, channels: int) -> NDArray[np.bool_]:
    """(N,) which images cannot become so many channels (`images.channels.from_array`)."""
    own = records["channels"]
    return (own > 0) & (own != channels) & ~(np.isin(own, (1, 3)) & (channels <= 4))


def named(manifest: Manifest, survey: Survey, records: Records, odd: NDArray[np.bool_]) -> list[UnreadableImage]:
    """The images that are left out, by name, as far as they are listed."""
    errors = [*survey.broken]
    for place in np.flatnonzero(odd)[:NAMED].tolist():
        row = manifest.rows(manifest.shards[place // manifest.shard_size])[place % manifest.shard_size]
        why = f"has {records['channels'][place]} channels, and others do not"
        errors.append(UnreadableImage(row.name, "wrong channels", why))
    return errors


def findings_of(
    survey: Survey, records: Records, errors: Sequence[UnreadableImage], dataset: Dataset, automatic: bool
) -> tuple[Finding, ...]:
    """What was noticed, gravest first. automatic: whether the validation part was chosen here."""
    findings = survey.left_out.findings()
    if broken := int(records["broken"].sum()):
        title = f"{counted(broken, 'file')} cannot be read"
        advice = "replace or remove them; training leaves them out"
        examples = tuple(Example((Path(error.name),), error.why) for error in errors)
        findings.append(Finding("broken", "error", title, advice, broken, examples))
    findings += task_data(dataset.task).check(dataset, ExaminedItems((), (), automatic))
    title = "copies, odd sizes and mixed types were not looked for, as these are many images"
    advice = f"vitrail check {shown(dataset.address)} --out DIR tells them"
    return by_weight([*findings, Finding("not-checked", "note", title, advice, len(records))])


def fingerprint_of(labels: tuple[str, ...], *columns: NDArray[np.generic]) -> str:
    """Of the images and what is to be learnt from them."""
    sha = hashlib.sha256("\n".join(labels).encode())
    for column in columns:
        sha.update(np.ascontiguousarray(column).tobytes())
    return sha.hexdigest()[:32]
