"""From DATA to what a run works on: the images that can be learnt from, in their parts, and what is known of them."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median

import numpy as np
import torch
from numpy.typing import NDArray

from vitrail.data.check import CheckReport, check
from vitrail.data.collection import Collection, Item
from vitrail.data.dense_options import DenseOptions
from vitrail.data.findings import Finding, by_weight, single
from vitrail.data.layouts import collect
from vitrail.data.names import counted, shown
from vitrail.data.store import Shape, Store
from vitrail.data.unreadable import UnreadableImage
from vitrail.errors import VitrailError
from vitrail.training.choose import Facts
from vitrail.training.progress import Progress
from vitrail.training.settings import Data
from vitrail.weights.preprocessing import Preprocessing

SAMPLE = 64  # digests of training images that the model file carries, so that `evaluate` knows them again
HEADROOM = 1.15  # pictures are stored so much larger than the model's input, where they are that large
LONGEST = 4  # times the model's input, for panoramas
DULL = 0.01  # a standard deviation below this is taken for this: pictures of one colour
GREY = ("1", "L", "LA", "I", "I;16", "I;16B", "I;16L", "F")  # of Pillow's modes
NAMED = 3  # broken files that are named on the screen; the report names all


@dataclass(frozen=True)
class Prepared:
    collection: Collection  # without the broken files
    description: str
    findings: tuple[Finding, ...]
    fingerprint: str  # of the images and what is to be learnt from them
    sample: list[str]
    holdout: float | None  # the fraction of train that became the validation part; None: DATA has its own
    sizes: tuple[int, int]  # median height and width
    grey: bool
    channels: int

    @property
    def train(self) -> tuple[Item, ...]:
        return self.collection.part("train")

    def without(self, broken: Mapping[Path, UnreadableImage]) -> Prepared:
        """The rest, when decoding showed that some are broken after all."""
        if not broken:
            return self
        kept = tuple(item for item in self.collection.items if item.path not in broken)
        title = f"{counted(len(broken), 'file')} turned out to be broken"
        found = Finding(
            "broken", "warning", title, "mend or replace them: they were left out", len(broken), single(broken)
        )
        return replace(
            self,
            collection=self.collection.replace(items=kept).trainable(),
            findings=by_weight([*self.findings, found]),
            fingerprint=hashlib.sha256(f"{self.fingerprint} {sorted(map(str, broken))}".encode()).hexdigest()[:32],
        )

    def facts(self, device: str, minutes: float) -> Facts:
        return Facts(
            images=len(self.train),
            height=self.sizes[0],
            width=self.sizes[1],
            grey=self.grey,
            channels=self.channels,
            labels=self.collection.labels,
            task=self.collection.task,
            cores=len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1,
            device=device,
            minutes=minutes,
            objects=max((len(item.classes()) for item in self.train), default=0)
            if self.collection.task == "detect"
            else 0,
        )


def prepare_data(data: str, how: Data, seed: int, progress: Progress) -> Prepared:
    """The fast part of `vitrail check`, and what follows from it. Says what it found."""
    collection = collect(
        data,
        layout=None if how.layout == "auto" else how.layout,
        task=None if how.task == "auto" else how.task,
        targets=[name.strip() for name in how.targets.split(",")] if how.targets else None,
        dense=DenseOptions(classes=how.classes, colours=how.colours, ignore=how.ignore, pairs=how.pairs),
    )
    holdout = None if collection.has_validation else how.validation or collection.usual_holdout
    report = check(collection, fast=True, fraction=holdout, seed=seed, progress=progress.counter("looking at images"))
    progress.say(f"data: {report.description}")
    for finding in report.findings:
        if finding.severity != "note":
            names = [shown(file, collection.root) for one in finding.examples[:NAMED] for file in one.files[:1]]
            progress.say(f"  {finding.severity}: {finding.title}{': ' + ', '.join(names) if names else ''}")
    broken = report.broken
    kept = tuple(item for item in report.collection.items if item.path not in broken)
    if not kept:
        raise VitrailError(f"{shown(collection.root)}: none of the {counted(len(broken), 'image')} can be read")
    usable = report.collection.replace(items=kept).trainable()
    if not usable.part("val"):
        raise VitrailError(
            f"{shown(collection.root)}: no image could be held out to measure the model on; add more images"
        )
    return _prepared(report, usable, holdout)


def _prepared(report: CheckReport, usable: Collection, holdout: float | None) -> Prepared:
    known = [one.facts for one in report.examined if one.facts is not None and one.problem is None]
    digests = {one.path: one.digest.hex() for one in report.examined}
    rows = [f"{digests[item.path]} {item.target} {item.split}" for item in usable.items]
    extra = [_channels(facts.mode) for facts in known]
    return Prepared(
        collection=usable,
        description=report.description,
        findings=report.findings,
        fingerprint=hashlib.sha256("\n".join(rows).encode()).hexdigest()[:32],
        sample=sorted({digests[item.path] for item in usable.part("train")})[:SAMPLE],
        holdout=holdout,
        sizes=(round(median(facts.height for facts in known)), round(median(facts.width for facts in known))),
        grey=all(facts.mode in GREY or facts.mode.endswith(" x 1") for facts in known),
        channels=min(extra) if extra else 3,
    )


def _channels(mode: str) -> int:
    """'uint16 x 5' is 5; Pillow's own modes count as colour."""
    _, cross, count = mode.rpartition(" x ")
    return int(count) if cross and count.isdigit() else 3


def stored_shape(prepared: Prepared, how: Preprocessing) -> Shape:
    """At which size decoded pictures are kept: the shorter side a little above the model's input, at the usual aspect
    of the set, and never above their own size."""
    size, channels = how.size, how.channels
    if how.resize == "window":
        return Shape(*prepared.sizes, channels, exact=True)
    scale = min(1.0, max(HEADROOM * side / own for side, own in zip(size, prepared.sizes, strict=True)))
    height, width = (max(1, min(round(own * scale), LONGEST * max(size))) for own in prepared.sizes)
    return Shape(height, width, channels)


def spread_over(count: int, most: int) -> NDArray[np.int64]:
    """Places of some pictures of a set, evenly: sets are ordered by class."""
    return np.unique(np.linspace(0, count - 1, min(count, most)).astype(np.int64))


def colours(store: Store, count: int) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and standard deviation of each channel over some training pictures, in 0..1."""
    places = spread_over(count, 500)
    total = squares = torch.zeros((), dtype=torch.float64)
    seen = 0
    for start in range(0, len(places), 50):
        pixels = store.take(places[start : start + 50])[0].flatten(0, 2).double() / 255  # (pixels, channels)
        total, squares, seen = total + pixels.sum(0), squares + pixels.square().sum(0), seen + len(pixels)
    mean = (total / seen).tolist()
    std = (squares / seen - (total / seen) ** 2).clamp(min=DULL**2).sqrt().tolist()
    return tuple(round(value, 4) for value in mean), tuple(round(value, 4) for value in std)
