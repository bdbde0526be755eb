"""Confident learning on cases small enough to be worked out by hand."""

from __future__ import annotations

import numpy as np
import pytest

from vitrail.search.labels.confident_learning import class_thresholds, confident_joint, label_quality

# Two classes. The thresholds: class 0 (0.9 + 0.7 + 0.2) / 3 = 0.6, class 1 (0.8 + 0.6 + 0.1) / 3 = 0.5.
LABELS = np.array([0, 0, 0, 1, 1, 1])
PROBABILITIES = np.array([[0.9, 0.1], [0.7, 0.3], [0.2, 0.8], [0.2, 0.8], [0.4, 0.6], [0.9, 0.1]])


def test_thresholds() -> None:
    assert class_thresholds(LABELS, PROBABILITIES).tolist() == pytest.approx([0.6, 0.5])


def test_the_joint_and_the_errors() -> None:
    confident = confident_joint(LABELS, PROBABILITIES)
    assert confident.joint.tolist() == [[2, 1], [1, 2]]
    assert confident.counted.tolist() == [0, 0, 1, 1, 1, 0]
    assert confident.errors.tolist() == [False, False, True, False, False, True]


def test_who_reaches_no_threshold_is_not_counted() -> None:
    labels, probabilities = np.array([0, 0, 1]), np.array([[1.0, 0.0], [0.5, 0.5], [0.0, 1.0]])  # 0.75 and 1
    confident = confident_joint(labels, probabilities)
    assert confident.counted.tolist() == [0, -1, 1] and not confident.errors.any()
    assert confident.joint.sum() == 2


def test_a_hard_class_has_a_threshold_of_its_own() -> None:
    """Nobody is ever sure of class 1, so 0.45 is much for it. It is counted, but its label is still more probable."""
    labels = np.array([0, 0, 1, 1, 0])
    probabilities = np.array([[0.95, 0.05], [0.95, 0.05], [0.6, 0.4], [0.6, 0.4], [0.55, 0.45]])
    confident = confident_joint(labels, probabilities)
    assert confident.counted.tolist() == [0, 0, 1, 1, 1] and not confident.errors.any()


def test_of_several_classes_that_are_reached_the_most_probable_counts() -> None:
    labels = np.array([0, 1, 2])
    probabilities = np.array([[0.5, 0.1, 0.4], [0.5, 0.3, 0.2], [0.4, 0.35, 0.25]])  # thresholds 0.5, 0.3, 0.25
    assert confident_joint(labels, probabilities).counted.tolist() == [0, 0, 1]


def test_a_class_without_images_is_never_reached() -> None:
    confident = confident_joint(np.array([0, 0]), np.array([[0.4, 0.6], [0.6, 0.4]]))
    assert confident.joint.tolist() == [[1, 0], [0, 0]]


def test_quality_is_the_probability_of_the_label() -> None:
    quality = label_quality(np.array([0, 1, 2]), np.array([[0.7, 0.2, 0.1], [0.7, 0.2, 0.1], [0.0, 1.0, 0.0]]))
    assert quality.tolist() == pytest.approx([0.7, 0.2, 0.0])


def test_it_is_what_cleanlab_finds() -> None:
    """The numbers of cleanlab 2.9.0: compute_confident_joint(calibrate=False), find_label_issues(confident_learning).
    On 200 random sets of 2 to 6 classes both agreed to the last image."""
    labels = np.array([0, 1, 2] * 6)
    probabilities = np.array(
        [
            *([0.8, 0.19, 0.01], [0.0, 0.33, 0.67], [0.13, 0.39, 0.48], [0.69, 0.07, 0.24], [0.05, 0.91, 0.04]),
            *([0.15, 0.06, 0.79], [0.24, 0.08, 0.68], [0.12, 0.45, 0.43], [0.64, 0.09, 0.27], [0.47, 0.44, 0.09]),
            *([0.03, 0.3, 0.67], [0.41, 0.28, 0.31], [0.74, 0.26, 0.0], [0.11, 0.65, 0.24], [0.68, 0.03, 0.29]),
            *([0.41, 0.59, 0.0], [0.07, 0.83, 0.1], [0.37, 0.27, 0.36]),
        ]
    )
    confident = confident_joint(labels, probabilities)
    assert confident.joint.tolist() == [[3, 1, 1], [0, 3, 3], [2, 0, 2]]
    assert np.flatnonzero(confident.errors).tolist() == [1, 6, 8, 10, 14, 15]
