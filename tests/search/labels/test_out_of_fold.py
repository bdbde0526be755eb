"""Out-of-fold probabilities: no image, and no copy of it, has a part in what is said of it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from vitrail.dataset import Item
from vitrail.search.labels.label_errors import class_errors, label_errors, several_label_errors
from vitrail.search.labels.out_of_fold import knn_probabilities, out_of_fold_probabilities, probe_probabilities
from vitrail.search.probe_dataset import LabelledVectors
from vitrail.tasks.registry import task_for

METHODS = [knn_probabilities, probe_probabilities, out_of_fold_probabilities]
LABELS = ["cat", "dog", "owl"]


def clusters(each: int = 40, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Vectors of three clear classes (N, 6), and their classes."""
    classes = np.repeat(np.arange(3), each)
    noise = np.random.default_rng(seed).normal(0, 0.35, (len(classes), 6))
    return (np.eye(6)[classes] + noise).astype(np.float32), classes


def labelled(vectors: np.ndarray, classes: np.ndarray, units: list[int] | None = None) -> LabelledVectors:
    items = [Item(Path(f"{place}.png"), int(target), "train") for place, target in enumerate(classes)]
    return LabelledVectors(vectors, items, task_for("classify", LABELS), units or list(range(len(items))))


@pytest.mark.parametrize("method", METHODS)
def test_an_image_has_no_say_in_its_own_probabilities(method) -> None:
    vectors, classes = clusters()
    first = method(labelled(vectors, classes))
    assert first.shape == (120, 3) and np.allclose(first.sum(1), 1, atol=1e-5)
    assert (first.argmax(1) == classes).mean() > 0.9
    changed = classes.copy()
    changed[7] = 2  # a cat called an owl
    assert method(labelled(vectors, changed))[7].argmax() == 0


@pytest.mark.parametrize("method", METHODS)
def test_copies_do_not_speak_for_each_other(method) -> None:
    """Ten copies of one cat, all called an owl: alone they agree, but they are one unit."""
    vectors, classes = clusters()
    copies = np.repeat(vectors[:1], 10, axis=0)
    everything, all_classes = np.concatenate([vectors, copies]), np.concatenate([classes, np.full(10, 2)])
    apart = list(range(120))
    together = method(labelled(everything, all_classes, [*apart, *[120] * 10]))
    assert (together[120:].argmax(1) == 0).all()
    if method is knn_probabilities:  # its nearest are its copies
        alone = method(labelled(everything, all_classes))
        assert (alone[120:].argmax(1) == 2).all()


def test_an_image_with_nothing_but_copies_beside_it() -> None:
    votes = knn_probabilities(labelled(np.eye(6, dtype=np.float32)[[0, 0, 0, 0]], np.array([0, 0, 1, 2]), [0] * 4))
    assert np.allclose(votes, [0.5, 0.25, 0.25])


def test_flipped_labels_come_first_with_the_label_that_fits() -> None:
    vectors, classes = clusters(each=100)
    wrong = np.random.default_rng(1).permutation(300)[:15]
    given = classes.copy()
    given[wrong] = (given[wrong] + 1) % 3
    data = labelled(vectors, given)
    found = label_errors("classify", data.items, LABELS, out_of_fold_probabilities(data))
    assert len(found) == 300
    first = found[:22]
    hits = [error for error in first if int(error.item.path.stem) in set(wrong.tolist())]
    assert len(hits) >= 14
    for error in hits:
        assert error.better == LABELS[classes[int(error.item.path.stem)]]
    assert sum(error.likely for error in hits) >= 8
    assert [error.quality for error in found] == sorted(error.quality for error in found)
    assert sum(error.likely for error in found) < 40


def test_several_labels_are_looked_at_one_by_one() -> None:
    items = [Item(Path(f"{place}.png"), target, "train") for place, target in enumerate([(0,), (0, 1), (), (1,), (0,)])]
    probabilities = np.array([[0.9, 0.1], [0.8, 0.9], [0.9, 0.2], [0.1, 0.8], [0.1, 0.1]])
    found = several_label_errors(items, ["red", "round"], probabilities)
    assert [(error.item.path.name, error.given, error.better) for error in found] == [
        ("2.png", "red", "with"),
        ("4.png", "red", "without"),
    ]
    assert found[1].words() == "fits better without the label red (0.10 as it is)"


def test_words_and_rows() -> None:
    items = [Item(Path("photos/a.png"), 0, "train"), Item(Path("photos/b.png"), 1, "train")]
    found = class_errors(items, LABELS[:2], np.array([[0.1, 0.9], [0.2, 0.8]]))
    assert found[0].words() == "labelled cat (0.10), dog fits better"
    assert found[0].to_dict(Path("photos")) == {
        "image": "a.png",
        "label": "cat",
        "better": "dog",
        "quality": 0.1,
        "likely": True,
    }
