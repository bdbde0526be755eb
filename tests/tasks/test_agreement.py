"""How well two engines agree, counted as each task counts."""

from __future__ import annotations

import pytest
import torch

from vitrail.tasks.agreement import Agreement, embedding_agreement
from vitrail.tasks.registry import task_for

LABELS = ["a", "b", "c"]


@pytest.mark.parametrize(
    ("same", "compared", "kept"),
    [(300, 300, True), (299, 300, False), (999, 1000, True), (998, 1000, False), (0, 0, False)],
)
def test_the_promise(same: int, compared: int, kept: bool) -> None:
    assert Agreement(same, compared, "pictures", 0.0, "probability").keeps_promise is kept


def test_few_pictures_may_agree_by_chance() -> None:
    task = task_for("classify", LABELS)
    expected, given = [torch.tensor([1.0, 0.0, 0.0])], [torch.tensor([9.0, 0.0, 0.0])]
    agreement = task.same_answers(expected, given)
    assert agreement.share == 1 and agreement.largest > 0.4 and not agreement.keeps_promise


def test_words() -> None:
    words = Agreement(2997, 3000, "pictures", 0.0271, "probability").in_words()
    assert words == "the same answer for 2,997 of 3,000 pictures (99.90 %), largest difference of a probability 0.027"


def test_classes() -> None:
    expected = [torch.tensor([2.0, 0.0, 0.0]), torch.tensor([0.0, 1.0, 0.9])]
    given = [torch.tensor([2.0, 0.0, 0.0]), torch.tensor([0.0, 0.9, 1.0])]
    agreement = task_for("classify", LABELS).same_answers(expected, given)
    assert (agreement.same, agreement.compared, agreement.unit) == (1, 2, "pictures")
    assert agreement.largest == pytest.approx(float((expected[1].softmax(0) - given[1].softmax(0)).abs().max()))


def test_labels() -> None:
    agreement = task_for("multilabel", LABELS).same_answers(
        [torch.tensor([1.0, -1.0, 0.1])], [torch.tensor([1.0, -1.0, -0.1])]
    )
    assert (agreement.same, agreement.compared, agreement.unit) == (2, 3, "labels")


def test_numbers() -> None:
    """By how much each varies: 1 for the first, 100 for the second, 0 for the third, whose size then counts."""
    expected = [torch.tensor([0.0, 0.0, 5.0]), torch.tensor([2.0, 200.0, 5.0])]
    given = [torch.tensor([0.01, 1.0, 5.05]), torch.tensor([2.1, 201.9, 5.3])]
    agreement = task_for("regress", LABELS).same_answers(expected, given)
    assert (agreement.same, agreement.compared) == (4, 6) and agreement.largest == pytest.approx(0.1, abs=1e-5)


def test_pixels() -> None:
    mask = torch.zeros(10, 10, dtype=torch.uint8)
    other = mask.clone()
    other[0, 0] = 255
    agreement = task_for("segment", LABELS).same_answers([mask, mask], [mask, other])
    assert (agreement.same, agreement.compared) == (199, 200) and agreement.largest == pytest.approx(0.01)


def test_depths() -> None:
    depth = torch.full((2, 5), 10.0)
    other = depth.clone()
    other[0, 0], other[0, 1] = 10.05, 11.0
    agreement = task_for("depth", ["depth"]).same_answers([depth], [other])
    assert (agreement.same, agreement.compared) == (9, 10) and agreement.largest == pytest.approx(0.1, abs=1e-4)


def test_objects() -> None:
    task = task_for("detect", LABELS)
    sure, unsure = task.threshold + 0.1, task.threshold - 0.01
    expected = torch.tensor([[0, sure, 0, 0, 100, 100, 0], [1, sure, 50, 50, 80, 80, 1], [2, unsure, 0, 0, 9, 9, 2]])
    moved, renamed, lost, exact = (expected.clone() for _ in range(4))
    moved[0, 2:6] += 1
    moved[0, 1] += 0.05
    renamed[1, 0] = 2
    lost[1, 1] = unsure
    counts = {
        "exact": (exact, 2, 2),
        "moved by a pixel": (moved, 2, 2),
        "another class": (renamed, 1, 3),
        "not found": (lost, 1, 2),
        "nothing": (expected[2:], 0, 2),
    }
    for name, (given, same, compared) in counts.items():
        agreement = task.same_answers([expected], [given])
        assert (agreement.same, agreement.compared) == (same, compared), name
    assert task.same_answers([expected], [moved]).largest == pytest.approx(0.05)
    assert not task.same_answers([expected[2:]], [expected[2:]]).keeps_promise  # nothing was found: nothing is known


def test_embeddings() -> None:
    vector = torch.tensor([1.0, 0.0])
    agreement = embedding_agreement([vector, vector], [vector * 3, torch.tensor([1.0, 0.1])])
    assert (agreement.same, agreement.compared) == (1, 2)
    assert agreement.largest == pytest.approx(1 - 1 / 1.01**0.5, abs=1e-6)
