"""How unsure probabilities are, against scipy's entropy, and what tasks make of their outputs."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.stats import entropy as reference

from vitrail.tasks.registry import task_for
from vitrail.tasks.shared.entropy import binary_entropy, entropy


def test_entropy_is_scipys_and_goes_from_0_to_1() -> None:
    probabilities = torch.softmax(torch.randn(5, 4, generator=torch.Generator().manual_seed(0)), 1).double()
    expected = reference(probabilities.numpy(), axis=1, base=4)
    np.testing.assert_allclose(entropy(probabilities, 1).numpy(), expected, atol=1e-12)
    assert entropy(torch.eye(3), 1).tolist() == [0, 0, 0] and entropy(
        torch.full((1, 3), 1 / 3), 1
    ).item() == pytest.approx(1)
    assert entropy(torch.ones(2, 1), 1).tolist() == [0, 0]
    assert binary_entropy(torch.tensor([0.0, 0.5, 1.0])).tolist() == [0, 1, 0]


def test_an_image_is_as_unsure_as_its_least_certain_label() -> None:
    unsure = task_for("multilabel", ["a", "b"]).uncertainty(torch.tensor([[0.0, 50.0], [50.0, -50.0]]))
    assert unsure is not None and unsure.tolist() == pytest.approx([1, 0], abs=1e-9)


def test_pixels_are_averaged() -> None:
    logits = torch.zeros(2, 2, 4, 4)
    logits[0, 0, :2] = 50.0  # half of the first picture is certain
    unsure = task_for("segment", ["a", "b"]).uncertainty(logits)
    assert unsure is not None and unsure.tolist() == pytest.approx([0.5, 1], abs=1e-6)


def test_boxes_that_may_be_objects_count() -> None:
    outputs = torch.full((3, 4, 5), -50.0)  # 3 images, 4 queries, one class and a box
    outputs[1, 0, 0] = 0.0
    outputs[2, :2, 0] = torch.tensor([0.0, 50.0])
    unsure = task_for("detect", ["a"]).uncertainty(outputs)
    assert unsure is not None and unsure.tolist() == pytest.approx([0, 1, 0.5], abs=1e-6)


@pytest.mark.parametrize("task", ["regress", "depth"])
def test_numbers_do_not_say(task: str) -> None:
    assert task_for(task, ["a"]).uncertainty(torch.zeros(1, 1)) is None
