"""Confident learning on cases small enough to be worked out by hand."""

from __future__ import annotations

import numpy as np
import pytest

from vitrail.search.labels.confident_learning import class_thresholds, confident_joint, find_errors, label_quality

# Two classes. The thresholds: class 0 (0.9 + 0.7 + 0.2) / 3 = 0.6, class 1 (0.8 + 0.6 + 0.1) / 3 = 0.5.
LABELS = np.array([0, 0, 0, 1, 1, 1])
PROBABILITIES = np.array([[0.9, 0.1], [0.7, 0.3], [0.2, 0.8], [0.2, 0.8], [0.4, 0.6], [0.9, 0.1]])


def test_thresholds() -> None:
    assert class_thresholds(LABELS, PROBABILITIES).tolist() == pytest.approx([0.6, 0.5])


def test_the_joint_and_the_errors() -> None:
    confident = confident_joint(LABELS, PROBABILITIES)
    assert confident.joint.tolist() == [[2, 1], [1, 2]]
    assert confident.counted.tolist() == [0, 0, 1, 1, 1, 0]
    assert find_errors(LABELS, PROBABILITIES).tolist() == [-1, -1, 1, -1, -1, 0]


def test_who_reaches_no_threshold_is_not_counted() -> None:
    labels, probabilities = np.array([0, 0, 1]), np.array([[1.0, 0.0], [0.5, 0.5], [0.0, 1.0]])  # 0.75 and 1
    confident = confident_joint(labels, probabilities)
    assert confident.counted.tolist() == [0, -1, 1] and (find_errors(labels, probabilities) == -1).all()
    assert confident.joint.sum() == 2


def test_a_hard_class_has_a_threshold_of_its_own() -> None:
    """Nobody is ever sure of class 1, so 0.45 is much for it: argmax would call the last label right."""
    labels = np.array([0, 0, 1, 1, 0])
    probabilities = np.array([[0.95, 0.05], [0.95, 0.05], [0.6, 0.4], [0.6, 0.4], [0.55, 0.45]])
    assert confident_joint(labels, probabilities).counted.tolist() == [0, 0, 1, 1, 1]
    assert (find_errors(labels, probabilities) == -1).all()  # yet its own class is still the more probable: no error


def test_of_several_classes_that_are_reached_the_most_probable_counts() -> None:
    labels = np.array([0, 1, 2])
    probabilities = np.array([[0.5, 0.1, 0.4], [0.5, 0.3, 0.2], [0.4, 0.35, 0.25]])  # thresholds 0.5, 0.3, 0.25
    assert confident_joint(labels, probabilities).counted.tolist() == [0, 0, 1]


def test_a_class_without_images_is_never_reached() -> None:
    confident = confident_joint(np.array([0, 0]), np.array([[0.4, 0.6], [0.6, 0.4]]))
    assert confident.joint.tolist() == [[1, 0], [0, 0]]


def test_quality_is_the_margin_to_the_best_other_class() -> None:
    quality = label_quality(np.array([0, 1, 2]), np.array([[0.7, 0.2, 0.1], [0.7, 0.2, 0.1], [0.0, 1.0, 0.0]]))
    assert quality.tolist() == pytest.approx([0.75, 0.25, 0.0])


def test_uncounted_images_have_errors_in_proportion() -> None:
    """Of six images labelled 0 four are counted, one of them as 1. So two of the six are errors: the most certain."""
    labels = np.array([0] * 6 + [1] * 2)
    ones = np.array([0.0, 0.1, 0.4, 0.6, 0.7, 0.9, 0.8, 0.8])  # thresholds: 0.55 of class 0, 0.8 of class 1
    probabilities = np.stack([1 - ones, ones], axis=1)
    confident = confident_joint(labels, probabilities)
    assert confident.joint.tolist() == [[3, 1], [0, 2]]
    assert confident.error_counts(labels).tolist() == [[0, 2], [0, 0]]  # 6 * 1 / 4, rounded
    assert find_errors(labels, probabilities).tolist() == [-1, -1, -1, -1, 1, 1, -1, -1]
