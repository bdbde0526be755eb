"""Which images of the data a model is measured on: none that it was trained on, as far as its file can tell."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from vitrail.data.loading.split import digest_files, hold_out
from vitrail.dataset import SPLITS, Dataset, Item
from vitrail.errors import VitrailError
from vitrail.text import counted, shown

PARTS = ("auto", "train", "val", "test", "all")
COPIES = 0.1  # of the images: where fewer were trained on, these are others, with copies of some of those among them
ALL_BUT_FEW = 0.9


@dataclass(frozen=True)
class EvaluationPart:
    """The images that a model is measured on."""

    items: Sequence[Item]
    part: str  # train, val, test or all
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class TrainingRecord:
    """What a training run leaves in the model's file about its images."""

    sample: frozenset[str]  # the smallest digests of the images it was trained on, in hex
    holdout: float | None  # the fraction that it held out itself
    seed: int

    @classmethod
    def read(cls, provenance: Mapping[str, Any]) -> TrainingRecord:
        """From the file; a model that was not trained here, or tells nothing, was trained on nothing we know."""
        training = provenance.get("training")
        training = training if isinstance(training, dict) else {}
        sample, holdout, seed = training.get("sample"), training.get("holdout"), training.get("seed")
        return cls(
            frozenset(map(str, sample)) if isinstance(sample, list) else frozenset(),
            holdout if isinstance(holdout, float) and 0 < holdout < 1 else None,
            seed if isinstance(seed, int) else 0,
        )

    def contains_any(self, digests: Sequence[bytes]) -> bool:
        """Whether any of these images is one of the sample."""
        return any(digest.hex() in self.sample for digest in digests)

    def share_of(self, digests: Sequence[bytes]) -> float:
        """About how many of these images it was trained on, as a share: those up to the sample's last digest are as
        good as drawn at random, and each that was trained on is in the sample."""
        last = max(self.sample, default="")
        drawn = [digest.hex() for digest in digests if digest.hex() <= last]
        return sum(digest in self.sample for digest in drawn) / len(drawn) if drawn else 0.0


def choose_part(dataset: Dataset, part: str, provenance: Mapping[str, Any]) -> EvaluationPart:
    """The items of the part; auto: test, else val, else what training held out of this very data, else all.

    The rule of the split gives every image its side again (`data/loading/split.py`), so that nothing but the fraction
    and the seed has to be remembered.
    """
    if part not in PARTS:
        raise VitrailError(f"part is {part!r}; choose one of {', '.join(PARTS)}")
    training = TrainingRecord.read(provenance)
    splits = [split for split in SPLITS if any(item.split == split for item in dataset.items)]
    if part == "auto" and (held_out := [split for split in ("test", "val") if split in splits]):
        part = held_out[0]
    if part in splits and not (part == "train" and "val" not in splits):
        return _with_warning(EvaluationPart(dataset.part(part), part), training)
    if part == "test":
        raise _no_part(dataset, part, splits)
    return _choose_without_validation(dataset, part, splits, training)


def _choose_without_validation(
    dataset: Dataset, part: str, splits: Sequence[str], training: TrainingRecord
) -> EvaluationPart:
    """auto, train or val of data that has no validation part of its own, or all of any data."""
    digests = digest_files([item.source for item in dataset.items]) if training.sample else []
    overlap = training.contains_any(digests)
    if overlap and part != "all" and training.holdout is not None:
        divided = hold_out(dataset, training.holdout, training.seed, digests)
        side = [digest for digest, item in zip(digests, divided.items, strict=True) if item.split == "train"]
        if (share := training.share_of(side)) > COPIES:
            return _choose_as_trained(divided, part, share)
    items = dataset.part("train") if part == "train" else dataset.items
    if part == "val" or not items:
        raise _no_part(dataset, part, splits)
    return EvaluationPart(items, "train" if part == "train" else "all", (_FLATTERED,) if overlap else ())


def _choose_as_trained(divided: Dataset, part: str, share: float) -> EvaluationPart:
    """One side of the data as the training run divided it, which was trained on this share of its side for that."""
    if part == "train":
        return EvaluationPart(divided.part("train"), "train", (_FLATTERED,))
    if not divided.has_validation:
        raise VitrailError(f"the model was trained on all of {shown(divided.address)}: give it other images")
    left = counted(len(divided.part("train")), "image")
    which = "" if share > ALL_BUT_FEW else f", about {100 * share:.0f} % of which"
    return EvaluationPart(divided.part("val"), "val", (f"left out {left}{which} the model was trained on",))


_FLATTERED = "the model was trained on some of these images: the score is flattered"


def _with_warning(part: EvaluationPart, training: TrainingRecord) -> EvaluationPart:
    """The same, with a word of warning where the model has seen some of it."""
    if training.sample and training.contains_any(digest_files([item.source for item in part.items])):
        return EvaluationPart(part.items, part.part, (*part.notes, _FLATTERED))
    return part


def _no_part(dataset: Dataset, part: str, splits: Sequence[str]) -> VitrailError:
    what = f"it has {' and '.join(splits)}" if splits else "it is not divided into parts"
    return VitrailError(f"{shown(dataset.address)} has no {part} part, {what}: choose another, or --part all")
