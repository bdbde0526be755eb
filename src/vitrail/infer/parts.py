"""Which images of the data a model is measured on: none that it was trained on, as far as its file can tell."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from vitrail.data.collection import SPLITS, Collection, Item
from vitrail.data.names import counted, shown
from vitrail.data.split import digest_files, hold_out
from vitrail.errors import VitrailError

PARTS = ("auto", "train", "val", "test", "all")


@dataclass(frozen=True)
class Chosen:
    items: tuple[Item, ...]
    part: str  # train, val, test or all
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Training:
    """What a training run leaves in the model's file about its images."""

    sample: frozenset[str]  # digests of some of the images it was trained on, in hex
    holdout: float | None  # the fraction that it held out itself
    seed: int

    @classmethod
    def of(cls, provenance: Mapping[str, Any]) -> Training:
        """From the file; a model that was not trained here, or tells nothing, was trained on nothing we know."""
        kept = provenance.get("training")
        kept = kept if isinstance(kept, dict) else {}
        sample, holdout, seed = kept.get("sample"), kept.get("holdout"), kept.get("seed")
        return cls(
            frozenset(map(str, sample)) if isinstance(sample, list) else frozenset(),
            holdout if isinstance(holdout, float) and 0 < holdout < 1 else None,
            seed if isinstance(seed, int) else 0,
        )

    def knows(self, digests: Sequence[bytes]) -> bool:
        """Whether any of these images is one of the sample."""
        return any(digest.hex() in self.sample for digest in digests)


def choose(collection: Collection, part: str, provenance: Mapping[str, Any]) -> Chosen:
    """The items of the part; auto: test, else val, else what training held out of this very data, else all.

    The rule of the split gives every image its side again (`vitrail.data.split`), so that nothing but the fraction and
    the seed has to be remembered.
    """
    if part not in PARTS:
        raise VitrailError(f"part is {part!r}; choose one of {', '.join(PARTS)}")
    training = Training.of(provenance)
    there = [split for split in SPLITS if any(item.split == split for item in collection.items)]
    if part == "auto" and (given := [split for split in ("test", "val") if split in there]):
        part = given[0]
    if part in there and not (part == "train" and "val" not in there):
        return _flattered(Chosen(collection.part(part), part), training)
    if part == "test":
        raise _no_part(collection, part, there)
    return _without_parts(collection, part, there, training)


def _without_parts(collection: Collection, part: str, there: Sequence[str], training: Training) -> Chosen:
    """auto, train or val of data that has no validation part of its own, or all of any data."""
    digests = digest_files([item.path for item in collection.items]) if training.sample else []
    seen = training.knows(digests)
    if seen and part != "all" and training.holdout is not None:
        return _as_trained(hold_out(collection, training.holdout, training.seed, digests), part)
    items = collection.part("train") if part == "train" else collection.items
    if part == "val" or not items:
        raise _no_part(collection, part, there)
    return Chosen(items, "train" if part == "train" else "all", (_FLATTERED,) if seen else ())


def _as_trained(held: Collection, part: str) -> Chosen:
    """One side of the data as the training run divided it."""
    if part == "train":
        return Chosen(held.part("train"), "train", (_FLATTERED,))
    if not held.has_validation:
        raise VitrailError(f"the model was trained on all of {shown(held.table or held.root)}: give it other images")
    left = counted(len(held.part("train")), "image")
    return Chosen(held.part("val"), "val", (f"left out {left} the model was trained on",))


_FLATTERED = "the model was trained on some of these images: the score is flattered"


def _flattered(chosen: Chosen, training: Training) -> Chosen:
    """The same, with a word of warning where the model has seen some of it."""
    if training.sample and training.knows(digest_files([item.path for item in chosen.items])):
        return Chosen(chosen.items, chosen.part, (*chosen.notes, _FLATTERED))
    return chosen


def _no_part(collection: Collection, part: str, there: Sequence[str]) -> VitrailError:
    what = f"it has {' and '.join(there)}" if there else "it is not divided into parts"
    return VitrailError(
        f"{shown(collection.table or collection.root)} has no {part} part, {what}: choose another, or --part all"
    )
