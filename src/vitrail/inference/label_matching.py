"""The data's targets in the model's terms: classes and numbers are matched by their names, never by their places."""

from __future__ import annotations

import difflib
from collections import Counter
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from vitrail.dataset import Item
from vitrail.errors import VitrailError
from vitrail.tasks.dense_options import IGNORE
from vitrail.tasks.dense_task import DenseTask
from vitrail.tasks.targets import OwnTargets
from vitrail.text import listing, nfc


def targets_for(
    items: Sequence[Item], theirs: Sequence[str], ours: Sequence[str] | None, columns: bool = False
) -> list[Any]:
    """Each item's target with the model's numbers. `theirs` are the data's labels, `ours` the model's.

    The data may have fewer classes than the model. A class that the model lacks, or has twice, is named.
    columns: the labels name numbers, not classes.
    """
    if ours is None:
        raise VitrailError(
            "the model file has no class names to match with the data's: give them in their order, as in "
            "vitrail.evaluate(vitrail.load(model, labels=[...]), data)"
        )
    if columns:
        return _numbers(items, theirs, ours)
    used = sorted({label for item in items for label in item.classes()})
    place = dict(zip(used, label_places([theirs[label] for label in used], ours), strict=True))
    return [
        place[item.target] if isinstance(item.target, int) else tuple(sorted(place[one] for one in item.classes()))
        for item in items
    ]


def renumbered(targets: OwnTargets, task: DenseTask, theirs: Sequence[str], ours: Sequence[str] | None) -> OwnTargets:
    """Targets of a dense task with the model's class numbers instead of the data's."""
    if ours is None:
        raise VitrailError("the model file has no class names to match with the data's: train it with names")
    if list(theirs) == list(ours):
        return targets
    return RenumberedTargets(targets, task, label_places(theirs, ours))


class RenumberedTargets:
    """Targets with other numbers for the classes."""

    def __init__(self, targets: OwnTargets, task: DenseTask, numbers: Sequence[int]) -> None:
        self.targets, self.task = targets, task
        self.numbers = torch.full((256,), IGNORE)
        self.numbers[: len(numbers)] = torch.tensor(numbers)

    def own(self, index: int) -> Tensor:
        """The target of one image in the model's numbers."""
        return self.task.renumber(self.targets.own(index), self.numbers)


def label_places(names: Sequence[str], ours: Sequence[str]) -> list[int]:
    """Where each name stands among the model's labels `ours`; one that the model lacks, or has twice, is named."""
    known = {nfc(label): place for place, label in enumerate(ours)}
    count = Counter(map(nfc, ours))
    for name in map(nfc, names):
        if name not in known:
            raise VitrailError(
                f"the model has no class {name!r}{_hint(name, ours)}: rename it or take it out of the data"
            )
        if count[name] > 1:
            raise VitrailError(
                f"the model has {count[name]} classes called {name!r}, and the data does not say which is meant: "
                "give the model other names with vitrail.load(model, labels=[...])"
            )
    return [known[nfc(name)] for name in names]


def _hint(name: str, ours: Sequence[str]) -> str:
    folded = {label.casefold(): label for label in ours}
    close = difflib.get_close_matches(name.casefold(), folded, n=1) if len(ours) <= 10_000 else []
    return f", only {folded[close[0]]!r}" if close else f" (it has {listing(ours, 5)})"


def _numbers(items: Sequence[Item], theirs: Sequence[str], ours: Sequence[str]) -> list[Any]:
    """The model's columns, in its order; columns that it does not predict are left out."""
    columns = {nfc(name): place for place, name in enumerate(theirs)}
    missing = [name for name in ours if nfc(name) not in columns]
    if missing:
        raise VitrailError(
            f"the model predicts {missing[0]!r}, which the data does not have (it has {listing(theirs, 5)}): "
            "give the column that name"
        )
    order = [columns[nfc(name)] for name in ours]
    return [tuple(item.target[place] for place in order) for item in items if isinstance(item.target, tuple)]
