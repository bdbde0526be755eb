"""The quick test of a representation: k-NN and a linear probe of frozen features, measured as the data's task measures.

Trained models are compared by what a head can read from them. Here nothing is trained but one linear layer, so this
takes little more than one pass over the images.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vitrail.data.loading.split import digest_files, make_units
from vitrail.dataset import Dataset, Item
from vitrail.errors import VitrailError
from vitrail.search.embeddings import Embedder
from vitrail.search.knn_probe import KS, K, as_outputs, target_rows, vote
from vitrail.search.linear_probe import fit_probe
from vitrail.search.nearest_neighbours import Vectors, nearest_neighbours
from vitrail.search.pile.image_vectors import image_vectors
from vitrail.tasks.registry import task_class, task_for
from vitrail.tasks.task import Task
from vitrail.text import counted, shown

FOLDS = 5  # where the data has no part to measure on
HELD_OUT = 0.2  # of the images to compare with choose the linear probe's penalty, where there is no validation part
PENALTIES = tuple(10.0 ** (power / 2) for power in range(-12, 2))  # 1e-6 to 3
STEPS = 200  # of L-BFGS
CHOOSE = 10_000  # images are enough to choose a penalty by

Places = NDArray[np.intp]


@dataclass(frozen=True)
class LabelledVectors:
    """Vectors of images whose targets are known."""

    vectors: Vectors  # (N, D)
    items: Sequence[Item]  # (N,), of images that could be read
    task: Task
    units: list[int]  # (N,): images of one unit, copies or a group, never stand on both sides

    @classmethod
    def of(cls, vectors: Vectors, items: Sequence[Item], dataset: Dataset) -> LabelledVectors:
        """items: those of the dataset that the vectors are of."""
        task = task_for(dataset.task, dataset.labels)
        units, _ = make_units(digest_files([item.path for item in items]), [item.group for item in items], seed=0)
        return cls(vectors, items, task, units)


@dataclass(frozen=True)
class Fold:
    """Places among the vectors."""

    train: Places
    choosing: NDArray[np.bool_]  # (len(train),), those that choose the penalty
    test: Places


def check_probeable(dataset: Dataset) -> None:
    """Refuse data of dense tasks, which have no target for a whole image, and data of one class."""
    task = task_class(dataset.task)
    if task.one_class_each and len(dataset.labels) < 2:
        raise VitrailError(
            f"{shown(dataset.address)} has one class, {', '.join(map(shown, dataset.labels))}: "
            "features are measured by how they tell classes apart, so give at least two"
        )
    if task.dense:
        raise VitrailError(
            f"{shown(dataset.address)} is for {task.title}: one vector an image says nothing about "
            "places in it; give data with a class, labels or numbers for each image"
        )


def probe_dataset(
    embedder: Embedder, dataset: Dataset, k: int = K, bootstrap: int = 1000, embeddings: str | Path | None = None
) -> dict[str, Any]:
    """`probe_vectors` of the dataset's readable images, and what was measured how. embeddings: a file of
    `vitrail embed` whose vectors are not computed again."""
    check_probeable(dataset)
    vectors, places, unreadable = image_vectors(embedder, [item.path for item in dataset.items], embeddings)
    data = LabelledVectors.of(vectors, [dataset.items[place] for place in places], dataset)
    findings = [finding.title for finding in dataset.findings if finding.severity in ("error", "warning")]
    return probe_vectors(data, k, bootstrap) | {
        "data": shown(dataset.address),
        "width": vectors.shape[1],
        "engine": embedder.engine.backend.name,
        "precision": embedder.engine.backend.precision,
        "unreadable": unreadable,
        "notes": findings,
    }


def probe_vectors(data: LabelledVectors, k: int, bootstrap: int = 1000, seed: int = 0) -> dict[str, Any]:
    """What k-NN and a linear probe of these vectors score, as `Task.evaluate` measures, with 95 % intervals.

    part: test, else val, else folds, in which every image is measured once by the others.
    """
    part, folds = divide(data, seed)
    fewest = min(len(fold.train) for fold in folds)
    k = min(k, fewest)
    ks = sorted({k, *(one for one in KS if one <= fewest)})
    outputs: dict[int | str, list[Tensor]] = {}
    penalties = []
    for fold in folds:
        answers, penalty = _probe(data, fold, ks)
        penalties.append(penalty)
        for name, rows in answers.items():
            outputs.setdefault(name, []).append(rows)
    measured = np.concatenate([fold.test for fold in folds])
    targets = data.task.encode([data.items[place].target for place in measured])
    groups = [data.units[place] for place in measured]
    together = groups if len(set(groups)) < len(groups) else None

    def measure(name: int | str, resamples: int) -> dict[str, Any]:
        result = data.task.evaluate(torch.cat(outputs[name]), targets, bootstrap=resamples, seed=seed, groups=together)
        for miss in result["worst"]:
            miss["image"] = str(data.items[measured[miss["index"]]].path)
        return result

    knn = measure(k, bootstrap)
    return {
        "task": data.task.name,
        "part": part,
        "compared": [len(fold.train) for fold in folds],
        "measured": len(measured),
        "k": k,
        "knn": knn,
        "by_k": {str(one): (knn if one == k else measure(one, 0))["metrics"] for one in ks},
        "linear": measure("linear", bootstrap) | {"penalty": penalties if len(penalties) > 1 else penalties[0]},
    }


def divide(data: LabelledVectors, seed: int = 0) -> tuple[str, list[Fold]]:
    """What is measured, and on which vectors by which."""
    parts, units = np.array([item.split or "train" for item in data.items]), np.array(data.units)
    for part in ("test", "val"):
        test, train = np.flatnonzero(parts == part), np.flatnonzero((parts != part) & (parts != "test"))
        train = train[~np.isin(units[train], units[test])]  # a copy of a test image would give its answer away
        if len(test) and len(train):
            choosing = parts[train] == "val" if (parts[train] == "val").any() else _choosing(data, train, seed)
            return part, [Fold(train, choosing, test)]
    count = min(FOLDS, len(set(data.units)))
    if count < 2:
        raise VitrailError(f"{counted(len(data.items), 'image')} can be compared with no other: give at least two")
    numbers = fold_numbers(data.items, data.units, count, seed)
    return f"{count} folds", [_fold(data, numbers != number, seed) for number in range(count)]


def fold_numbers(items: Sequence[Item], units: Sequence[int], folds: int, seed: int = 0) -> NDArray[np.int64]:
    """(N,) the fold of each image. Units are never divided; every class is dealt out evenly, in an order of chance."""
    order = np.random.default_rng(seed).permutation(max(units) + 1)  # by the number of the unit
    first = {unit: item.classes()[:1] or (-1,) for item, unit in zip(reversed(items), reversed(units), strict=True)}
    dealt = sorted(first, key=lambda unit: (first[unit], order[unit]))
    fold = {unit: place % folds for place, unit in enumerate(dealt)}
    return np.array([fold[unit] for unit in units])


# ---- parts


def _fold(data: LabelledVectors, train: NDArray[np.bool_], seed: int) -> Fold:
    places = np.flatnonzero(train)
    return Fold(places, _choosing(data, places, seed), np.flatnonzero(~train))


def _choosing(data: LabelledVectors, train: Places, seed: int) -> NDArray[np.bool_]:
    """A fifth of the training images, in whole units."""
    items, units = [data.items[place] for place in train], [data.units[place] for place in train]
    return fold_numbers(items, units, round(1 / HELD_OUT), seed + 1) == 0


def _probe(data: LabelledVectors, fold: Fold, ks: Sequence[int]) -> tuple[dict[int | str, Tensor], float]:
    """The outputs of each probe for the fold's test images, and the penalty that was chosen."""
    task, train = data.task, [data.items[place].target for place in fold.train]
    task.fit(train)
    encoded = task.encode(train)
    neighbours = nearest_neighbours(data.vectors[fold.test], data.vectors[fold.train], max(ks))
    rows = target_rows(encoded, task)
    outputs: dict[int | str, Tensor] = {k: as_outputs(vote(neighbours, rows, k), task) for k in ks}
    features = torch.from_numpy(data.vectors[fold.train])
    few = torch.from_numpy(_some(len(train), CHOOSE))
    chosen = fit_probe(
        features[few], encoded[few], task, penalties=PENALTIES, held_out=torch.from_numpy(fold.choosing)[few]
    )
    probe = fit_probe(features, encoded, task, penalties=(chosen.penalty,), steps=STEPS)
    outputs["linear"] = task.meant(probe(torch.from_numpy(data.vectors[fold.test])))
    return outputs, chosen.penalty


def _some(count: int, most: int) -> NDArray[np.int64]:
    """Places of all, or of so many at even steps."""
    return np.unique(np.linspace(0, count - 1, min(count, most)).round().astype(np.int64))
