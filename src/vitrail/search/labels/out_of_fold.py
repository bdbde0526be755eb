"""What the other images say about each one's target: probabilities that no image has a part in by its own label."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

from vitrail.search.knn_probe import K, target_rows, vote
from vitrail.search.linear_probe import fit_probe
from vitrail.search.nearest_neighbours import Neighbours, neighbours_of_all
from vitrail.search.probe_dataset import LabelledVectors, fold_numbers

FOLDS = 5
MOST_COPIES = 50  # nearest neighbours of an image's own unit that can be passed over
CHOOSE = 5_000  # images choose the probe's penalty

Probabilities = NDArray[np.float32]


def out_of_fold_probabilities(data: LabelledVectors, seed: int = 0) -> Probabilities:
    """(N, K): the mean of k-NN and of a linear probe in folds, whose mistakes differ."""
    return np.asarray((knn_probabilities(data) + probe_probabilities(data, seed)) / 2, np.float32)


def knn_probabilities(data: LabelledVectors, k: int = K) -> Probabilities:
    """(N, K) by the k nearest images of other units: neither the image itself nor its copies and group count."""
    units = np.asarray(data.units)
    copies = int(np.bincount(units).max()) - 1
    found = neighbours_of_all(data.vectors, k + min(copies, MOST_COPIES))
    own = units[found.index] == units[:, None]
    order = np.argsort(own, axis=1, kind="stable")[:, :k]  # its own unit goes to the end, the others keep their order
    similarity = np.where(own, -np.inf, found.similarity)
    rows = np.arange(len(units))[:, None]
    targets = target_rows(data.task.encode([item.target for item in data.items]), data.task)
    votes = vote(Neighbours(similarity[rows, order], found.index[rows, order]), targets)
    votes[own.all(axis=1)] = targets.mean(axis=0)  # nothing but its own unit: all say as much as can be said
    return votes


def probe_probabilities(data: LabelledVectors, seed: int = 0) -> Probabilities:
    """(N, K) by a linear layer that was fitted to the other folds; units are never divided."""
    task = data.task
    encoded = task.encode([item.target for item in data.items])
    task.fit([item.target for item in data.items])
    features, numbers = (
        torch.from_numpy(data.vectors),
        torch.from_numpy(fold_numbers(data.items, data.units, FOLDS, seed)),
    )
    few = torch.from_numpy(np.random.default_rng(seed).permutation(len(features))[:CHOOSE])
    penalty = fit_probe(features[few], encoded[few], task, held_out=numbers[few] == 0).penalty
    logits = torch.empty(len(features), task.outputs)
    for number in range(FOLDS):
        test = numbers == number
        if test.any() and not test.all():
            logits[test] = fit_probe(features[~test], encoded[~test], task, penalties=(penalty,))(features[test])
    return (logits.softmax(1) if task.one_class_each else logits.sigmoid()).numpy()
