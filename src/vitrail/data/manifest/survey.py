"""One look at every image of a large manifest: what training has to know of each is kept as a few numbers.

What `vitrail check` keeps of an image is some kilobytes. Here it is 16 bytes: its class, its part, a number made from
its bytes, by which it is held out or not (`data/loading/split.py` has the rule), and whether it can be read. Each image
is decoded once, as those of a folder are that is too large for a cache.
"""

from __future__ import annotations

import statistics
from collections import Counter
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from vitrail.data.checks.examine import Examined, common_depth, examine
from vitrail.data.layouts.manifest_layout import NAMED, LeftOut
from vitrail.data.loading.split import ENOUGH, digest_name, number_of
from vitrail.data.loading.window_sampler import POOL
from vitrail.data.manifest.manifest_file import Manifest, Shard
from vitrail.data.manifest.manifest_row import ManifestRow
from vitrail.data.manifest.parquet_cells import keep_row_groups
from vitrail.dataset import SPLITS
from vitrail.images.decode import channels_of
from vitrail.images.unreadable import UnreadableImage
from vitrail.progress import Progress
from vitrail.text import natural, nfc
from vitrail.threads import in_threads

NO_CLASS = NO_PART = -1
RECORD = np.dtype(
    [
        ("number", np.float64),  # between 0 and 1, of its bytes
        ("target", np.int32),  # NO_CLASS: it has no label, or could not be listed
        ("split", np.int8),  # place in SPLITS, or NO_PART
        ("together", np.bool_),  # whether it lies in the row group of the image before it
        ("channels", np.uint8),
        ("broken", np.bool_),
    ]
)
Records = NDArray[np.void]  # (N,) of RECORD
MEASURED = 100  # images of a shard, whose sizes tell the usual one
DIGESTS = 4096  # that are kept: a model file carries some of its training images


@dataclass
class Survey:
    """What a shard showed, and with `add` what the next ones did."""

    records: list[Records] = field(default_factory=list)  # of each shard; the classes are places in `labels`
    labels: list[str] = field(default_factory=list)  # in the order in which they came
    left_out: LeftOut = field(default_factory=LeftOut)
    broken: list[UnreadableImage] = field(default_factory=list)  # the first of them
    sizes: list[tuple[int, int]] = field(default_factory=list)  # heights and widths of some
    modes: Counter[str] = field(default_factory=Counter)  # `ImageFacts.mode`
    deep: dict[int | None, Examined] = field(default_factory=dict)  # an image of each bit depth beyond 8
    digests: list[tuple[bytes, int]] = field(default_factory=list)  # the smallest, with the places of their images

    def add(self, other: Survey) -> None:
        """What the shards after these showed."""
        images = sum(map(len, self.records))
        known = {label: place for place, label in enumerate(self.labels)}
        numbers = [known.setdefault(label, len(known)) for label in other.labels]
        self.records += [with_targets(records, numbers) for records in other.records]
        self.labels = list(known)
        self.left_out.add(other.left_out)
        self.broken = [*self.broken, *other.broken][:NAMED]
        self.sizes += other.sizes
        self.modes += other.modes
        self.deep |= other.deep
        self.digests = sorted([*self.digests, *((one, images + place) for one, place in other.digests)])[:DIGESTS]

    def in_order(self) -> tuple[tuple[str, ...], Records]:
        """The labels in their usual order, and all records with classes that are places in it."""
        labels = tuple(sorted(self.labels, key=natural))
        place = {label: number for number, label in enumerate(labels)}
        return labels, with_targets(np.concatenate(self.records), [place[label] for label in self.labels])

    @property
    def usual_size(self) -> tuple[int, int]:
        """Median height and width."""
        heights, widths = zip(*self.sizes, strict=True)
        return round(statistics.median(heights)), round(statistics.median(widths))

    @property
    def bits(self) -> int | None:
        """The bit depth that all are read with."""
        return common_depth(list(self.deep.values()))


def look_at_shard(manifest: Manifest, shard: Shard, seed: int, progress: Progress | None = None) -> Survey:
    """Decode the images of a shard that have labels. seed: of the numbers by which images are held out."""
    rows, labels = manifest.rows(shard), dict[str, int]()
    records, survey = np.zeros(len(rows), RECORD), Survey()
    records["target"] = NO_CLASS
    for place, row in enumerate(rows):
        records["together"][place] = place > 0 and in_one_group(rows[place - 1], row)
        records["split"][place] = SPLITS.index(row.split) if row.split in SPLITS else NO_PART
        if survey.left_out.takes(row):
            records["target"][place] = labels.setdefault(nfc(row.label or ""), len(labels))
    if records["together"].any():
        keep_row_groups(2 * POOL)  # the threads are in several groups at once
    places = np.flatnonzero(records["target"] != NO_CLASS).tolist()
    images = in_threads(lambda place: examine(rows[place].image(manifest.root)), places, None, progress)
    for place, image in zip(places, images, strict=True):
        content = image.digest or digest_name(rows[place].image(manifest.root))
        records["number"][place] = number_of(f"bytes {content.hex()}", seed)
        records["broken"][place] = image.problem is not None
        if image.problem is None and image.facts is not None:
            records["channels"][place] = channels_of(image.facts.mode)
    readable = [image for image in images if image.problem is None]
    survey.records, survey.labels = [records], list(labels)
    survey.broken = [image.problem for image in images if image.problem is not None][:NAMED]
    survey.sizes = [(image.facts.height, image.facts.width) for image in readable[:MEASURED] if image.facts is not None]
    survey.modes = Counter(image.facts.mode for image in readable if image.facts is not None)
    survey.deep = {image.depth: image for image in readable if image.deep}
    survey.digests = sorted((image.digest, place) for place, image in zip(places, images, strict=True) if image.digest)
    del survey.digests[DIGESTS:]
    return survey


def with_targets(records: Records, numbers: list[int]) -> Records:
    """The records with other numbers for their classes; NO_CLASS stays."""
    changed = records.copy()
    changed["target"] = np.array([*numbers, NO_CLASS], np.int32)[records["target"]]  # NO_CLASS: the last place
    return changed


def in_one_group(before: ManifestRow, row: ManifestRow) -> bool:
    """Whether two images lie in the same row group of a Parquet file."""
    return row.column is not None and (before.file, before.column, before.group) == (row.file, row.column, row.group)


def held_out(records: Records, fraction: float) -> NDArray[np.bool_]:
    """(N,) which of these images become the validation part: the rule of `split.held_out_units`, on arrays. All of them
    have a label, and no part but train."""
    numbers, targets = records["number"], records["target"]
    every, order = np.bincount(targets), np.argsort(targets, kind="stable")
    ends = np.cumsum(every)

    def of_class(number: int) -> NDArray[np.float64]:
        return np.unique(numbers[order[ends[number] - every[number] : ends[number]]])

    out: NDArray[np.bool_] = numbers < fraction
    none = np.flatnonzero((every >= ENOUGH) & (np.bincount(targets[out], minlength=len(every)) == 0))
    smallest = [units[0] for units in map(of_class, none.tolist()) if len(units) >= ENOUGH]
    out |= np.isin(numbers, smallest)
    full = np.flatnonzero((every > 0) & (np.bincount(targets[out], minlength=len(every)) == every))
    return out & ~np.isin(numbers, [of_class(number)[-1] for number in full.tolist()])
