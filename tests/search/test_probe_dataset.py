"""How frozen features are measured: on which images, by which, and for which tasks."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from vitrail.dataset import Dataset, Item
from vitrail.errors import VitrailError
from vitrail.search.probe_dataset import LabelledVectors, check_probeable, divide, fold_numbers, probe_vectors
from vitrail.tasks.registry import task_for

RNG = np.random.default_rng(0)


def labelled(task: str, targets: list, splits: list[str | None], noise: float = 0.3) -> LabelledVectors:
    """Vectors that tell the targets, a unit each."""
    columns = np.array([np.atleast_1d(target)[:1] for target in targets], float)
    vectors = np.concatenate([np.cos(columns), np.sin(columns), 0 * columns], axis=1)
    vectors = (vectors + noise * RNG.normal(size=vectors.shape)).astype(np.float32)
    items = [Item(Path(f"{n}.png"), t, s) for n, (t, s) in enumerate(zip(targets, splits, strict=True))]
    labels = ["number"] if task == "regress" else ["a", "b", "c"]
    return LabelledVectors(vectors, items, task_for(task, labels), list(range(len(items))))


def test_the_test_part_is_measured_by_train_and_val_and_val_chooses() -> None:
    data = labelled("classify", [n % 3 for n in range(120)], ["train"] * 60 + ["val"] * 30 + ["test"] * 30)
    part, (fold,) = divide(data)
    assert part == "test" and fold.test.tolist() == list(range(90, 120)) and fold.train.tolist() == list(range(90))
    assert fold.choosing.tolist() == [False] * 60 + [True] * 30
    result = probe_vectors(data, k=20, bootstrap=50)
    assert (result["measured"], result["compared"], list(result["by_k"])) == (30, [90], ["10", "20"])
    for name in ("knn", "linear"):
        low, high = result[name]["intervals"]["accuracy"]
        assert 0.8 < result[name]["metrics"]["accuracy"] <= 1 and low <= result[name]["metrics"]["accuracy"] <= high
        assert [row["label"] for row in result[name]["per_label"]] == ["a", "b", "c"]
    assert result["by_k"]["20"]["accuracy"] == result["knn"]["metrics"]["accuracy"]


def test_a_copy_of_a_test_image_does_not_vote() -> None:
    data = labelled("classify", [n % 3 for n in range(30)], ["train"] * 20 + ["test"] * 10)
    data.units[3] = data.units[25]
    assert divide(data)[1][0].train.tolist() == [n for n in range(20) if n != 3]


def test_without_a_part_to_measure_there_are_folds() -> None:
    data = labelled("classify", [n % 3 for n in range(60)], [None] * 60)
    part, folds = divide(data)
    assert part == "5 folds" and sorted(np.concatenate([fold.test for fold in folds])) == list(range(60))
    for fold in folds:
        assert not set(fold.test) & set(fold.train) and 0 < fold.choosing.sum() < len(fold.train)
        assert sorted(data.items[place].target for place in fold.test) == [0] * 4 + [1] * 4 + [2] * 4
    assert probe_vectors(data, k=5, bootstrap=0)["measured"] == 60


def test_folds_never_divide_a_unit() -> None:
    units = [n // 4 for n in range(80)]
    numbers = fold_numbers([Item(Path("x"), n % 2) for n in range(80)], units, 5)
    assert all(len(set(numbers[4 * unit : 4 * unit + 4])) == 1 for unit in range(20))
    assert sorted(np.bincount(numbers)) == [16] * 5


def test_labels_and_numbers() -> None:
    several = labelled("multilabel", [(n % 3,) for n in range(90)], ["train"] * 60 + ["test"] * 30)
    result = probe_vectors(several, k=10, bootstrap=0)
    assert result["knn"]["metrics"]["mAP"] > 0.8 and result["linear"]["metrics"]["mAP"] > 0.8
    values = [(float(value),) for value in RNG.uniform(0, 2, 90)]
    numbers = labelled("regress", values, ["train"] * 60 + ["test"] * 30, noise=0.05)
    result = probe_vectors(numbers, k=10, bootstrap=0)
    assert result["knn"]["metrics"]["R2"] > 0.8 and result["linear"]["metrics"]["R2"] > 0.8


def test_k_is_no_more_than_there_are() -> None:
    assert probe_vectors(labelled("classify", [0, 1] * 5, [None] * 10), k=20, bootstrap=0)["k"] == 8


def test_one_image_cannot_be_compared() -> None:
    with pytest.raises(VitrailError, match="can be compared with no other"):
        divide(labelled("classify", [0], [None]))


def test_dense_tasks_are_refused_in_a_sentence() -> None:
    with pytest.raises(VitrailError, match="masks is for segmentation: one vector an image says nothing about places"):
        check_probeable(Dataset(Path("masks"), "masks", "segment", ("a",), ()))


def test_one_class_measures_nothing() -> None:
    with pytest.raises(VitrailError, match="photos has one class, a: .* give at least two"):
        check_probeable(Dataset(Path("photos"), "folders", "classify", ("a",), ()))
