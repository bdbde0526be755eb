"""Holding images out for validation, so that the side of each is decided once and for good.

The rule. Every image has a number between 0 and 1, made from its bytes and the seed; below the fraction it is held
out. So its side depends on itself alone, and adding, removing or renaming files moves nothing; classes are held
out in the same proportion, within chance. Images with the same bytes have the same number. A group (the `group`
column) has one number, made from its name, and everything that shares a group or its bytes is one unit, which is
never divided.

Chance alone would at times hold out none of a small class, or all of it. Two exceptions:
1. A class of 5 units or more with none below the fraction holds out the unit with its smallest number.
2. A class whose units are all held out keeps the one with its largest number for training. This one wins.

So what can move when files are added is one unit of a class, and only in a class that by chance has all its units on
one side of the fraction: the unit of an exception goes back when a new one takes its place. Once a class of at least
5 units has one on each side by its number, as nearly every class of 20 has, nothing in it moves again. (A class
shares the fate of another when they share a unit.) Besides: a new file that links two units, such as a copy of an
image in another group, joins them, and the joined unit has one side."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from vitrail.dataset import Dataset, Item
from vitrail.errors import VitrailError
from vitrail.images.stored_image import StoredImage
from vitrail.images.unreadable import UnreadableImage
from vitrail.progress import Progress
from vitrail.text import nfc
from vitrail.threads import in_threads

ENOUGH = 5  # units in a class from which one is always held out


def hold_out(
    dataset: Dataset, fraction: float | None = None, seed: int = 0, digests: Sequence[bytes] | None = None
) -> Dataset:
    """The same dataset with every item in a split. One that has a validation split stays as it is; else a fraction of
    train (None: the usual one) becomes val, and test is not touched. `digests`: of the items' bytes, where they are
    known already."""
    fraction = dataset.usual_holdout if fraction is None else fraction
    if not 0 < fraction < 1:
        raise VitrailError(f"the fraction to hold out is between 0 and 1, not {fraction}")
    if dataset.has_validation:
        return dataset.replace(items=tuple(_placed(item, item.split or "train") for item in dataset.items))
    free = [index for index, item in enumerate(dataset.items) if item.split in (None, "train")]
    items = [dataset.items[index] for index in free]
    content = digest_files([item.source for item in items]) if digests is None else [digests[index] for index in free]
    units, numbers = make_units(content, [item.group for item in items], seed)
    out = held_out_units(units, numbers, [item.classes() for item in items], fraction)
    sides = {index: "val" if unit in out else "train" for index, unit in zip(free, units, strict=True)}
    return dataset.replace(
        items=tuple(_placed(item, sides.get(index, "test")) for index, item in enumerate(dataset.items))
    )


def make_units(digests: Sequence[bytes], groups: Sequence[str | None], seed: int) -> tuple[list[int], dict[int, float]]:
    """The unit of each image, and the number of each unit: that of its group, else that of its bytes."""
    parent: dict[str, str] = {}

    def top(key: str) -> str:
        while (above := parent.setdefault(key, key)) != key:
            parent[key] = parent[above]
            key = above
        return key

    keys = [f"bytes {digest.hex()}" for digest in digests]
    for key, group in zip(keys, groups, strict=True):
        if group is None:
            top(key)
        else:
            parent[top(key)] = top(f"group {nfc(group)}")
    # groups before bytes, then the smallest: what joins two units keeps the side of one of them
    best: dict[str, tuple[bool, float]] = {}
    for key in parent:
        mine = (key.startswith("bytes"), number_of(key, seed))
        best[top(key)] = min(mine, best.get(top(key), mine))
    unit = {key: index for index, key in enumerate(best)}
    return [unit[top(key)] for key in keys], {unit[key]: number for key, (_, number) in best.items()}


def held_out_units(
    units: Sequence[int], numbers: dict[int, float], classes: Sequence[tuple[int, ...]], fraction: float
) -> set[int]:
    """The units to hold out; `units` and `classes` of each image. Without classes, all images are one class."""
    members: dict[int, set[int]] = {}
    for unit, own in zip(units, classes, strict=True):
        for label in own or (-1,):
            members.setdefault(label, set()).add(unit)
    out = {unit for unit in numbers if numbers[unit] < fraction}
    ranked = [sorted(some, key=numbers.__getitem__) for _, some in sorted(members.items())]
    out |= {some[0] for some in ranked if len(some) >= ENOUGH and not out.intersection(some)}
    return out - {some[-1] for some in ranked if out.issuperset(some)}


def number_of(key: str, seed: int) -> float:
    """A number between 0 and 1 for a unit: evenly spread, and the same on every machine."""
    digest = hashlib.blake2b(f"{seed} {key}".encode("utf-8", "surrogateescape"), digest_size=8).digest()
    return int.from_bytes(digest, "big") / 2**64


def digest_files(
    sources: Sequence[Path | StoredImage], workers: int | None = None, progress: Progress | None = None
) -> list[bytes]:
    """The digest of each image's bytes. One that is empty or cannot be read has that of its name: others
    report it."""
    return in_threads(_digest_file, sources, workers, progress)


def digest_name(source: Path | StoredImage) -> bytes:
    """In the place of the digest of an image that has no bytes. Whoever divides a set takes this one, or training and
    `evaluate` would divide it differently."""
    return digest(os.fsencode(source.name))


def digest(data: bytes) -> bytes:
    """16 bytes by which files with the same content are known."""
    return hashlib.blake2b(data, digest_size=16).digest()


# ---- parts


def _digest_file(source: Path | StoredImage) -> bytes:
    try:
        data = source.read() if isinstance(source, StoredImage) else source.read_bytes()
    except (OSError, UnreadableImage):
        data = b""
    return digest(data) if data else digest_name(source)


def _placed(item: Item, split: str) -> Item:
    return item if item.split == split else replace(item, split=split)
