"""Confident learning: which labels contradict what a model, that has not seen them, is sure of.

Northcutt, Jiang and Chuang, "Confident Learning: Estimating Uncertainty in Dataset Labels" (2021). Every class has its
own threshold, the mean probability of the images that carry its label: a class that a model is never sure of is not
held to the standard of one that is easy. Images that reach the threshold of another class tell how many labels of each
class are really another one's; so many images, those with the largest margin, count as errors ("prune by noise rate").
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Probabilities = NDArray[np.floating]  # (N, K), rows that sum to 1, each by others than the image itself
Labels = NDArray[np.integer]  # (N,)


class Confident(NamedTuple):
    """What the probabilities are sure of."""

    joint: NDArray[np.int64]  # (K, K): images with label i that are counted as class j
    counted: NDArray[np.int64]  # (N,): the class that each image is counted as; -1: none

    def error_counts(self, labels: Labels) -> NDArray[np.int64]:
        """(K, K): how many of all images with label i are really of class j, the uncounted ones in proportion."""
        rows = self.joint.sum(axis=1)
        images = np.bincount(labels, minlength=len(rows))
        counts = np.rint(self.joint * (images / np.maximum(rows, 1))[:, None]).astype(np.int64)
        np.fill_diagonal(counts, 0)
        return counts


def find_errors(labels: Labels, probabilities: Probabilities) -> NDArray[np.int64]:
    """(N,): the class that each image counts as instead of its label; -1 where its label stands."""
    counts = confident_joint(labels, probabilities).error_counts(labels)
    instead, largest = np.full(len(labels), -1), np.zeros(len(labels))
    for label, other in zip(*np.nonzero(counts), strict=True):
        places = np.flatnonzero(labels == label)
        margin = probabilities[places, other] - probabilities[places, label]
        chosen = np.argsort(-margin, kind="stable")[: counts[label, other]]
        chosen = chosen[margin[chosen] > largest[places[chosen]]]  # of several classes the one that fits best, if any
        instead[places[chosen]], largest[places[chosen]] = other, margin[chosen]
    return instead


def class_thresholds(labels: Labels, probabilities: Probabilities) -> NDArray[np.float64]:
    """(K,): the mean probability of each class among the images with its label; above 1 where there is none."""
    own = probabilities[np.arange(len(labels)), labels]
    counts = np.bincount(labels, minlength=probabilities.shape[1])
    sums = np.bincount(labels, weights=own, minlength=probabilities.shape[1])
    return np.where(counts > 0, sums / np.maximum(counts, 1), np.inf)


def confident_joint(labels: Labels, probabilities: Probabilities) -> Confident:
    """Count each image as the most probable of the classes whose threshold it reaches."""
    reached = probabilities >= class_thresholds(labels, probabilities) - 1e-9  # a class of one image reaches its own
    counted = np.where(reached, probabilities, -1.0).argmax(axis=1)
    counted = np.where(reached.any(axis=1), counted, -1)
    classes = probabilities.shape[1]
    sure = counted >= 0
    pairs = labels[sure].astype(np.int64) * classes + counted[sure]
    joint = np.bincount(pairs, minlength=classes * classes).reshape(classes, classes)
    return Confident(joint, counted)


def label_quality(labels: Labels, probabilities: Probabilities) -> NDArray[np.float64]:
    """(N,): how well each label fits, from 0 to 1: its probability against that of the best other class."""
    rows = np.arange(len(labels))
    own = probabilities[rows, labels].astype(np.float64)
    others = np.array(probabilities, dtype=np.float64)
    others[rows, labels] = -np.inf
    return (1 + own - others.max(axis=1)) / 2
