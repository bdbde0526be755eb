"""Deletion and insertion curves of a model whose answer is known for every subset of patches."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from vitrail.explanation.methods.faithfulness import Curves, area, average, best_of, compare, curves
from vitrail.explanation.target_score import target_score
from vitrail.model.config import ViTConfig


class Corner(nn.Module):
    """Sees the first patch only: its logit is the brightness there."""

    config = ViTConfig(image_size=8, patch_size=2, classes=1, channels=1, width=8, heads=1, depth=1)

    def forward(self, images):
        return 40 * images[:, :, :2, :2].mean((2, 3)) - 20


def corner_image():
    image = torch.zeros(1, 8, 8)
    image[:, :2, :2] = 1.0
    return image


def test_the_right_order_falls_at_once_and_the_wrong_one_last():
    image = corner_image()
    score = target_score(Corner(), image[None], "multilabel")
    right = torch.zeros(4, 4)
    right[0, 0] = 1
    good, bad = (curves(Corner(), image, ranking, score, steps=16) for ranking in (right, -right))
    assert good.shares == pytest.approx(np.arange(17) / 16)
    assert good.deletion[0] == pytest.approx(1)
    assert good.deletion[1:] == pytest.approx(np.zeros(16), abs=1e-6)
    assert good.insertion[1:] == pytest.approx(np.ones(16))
    assert bad.deletion[:-1] == pytest.approx(np.ones(16))
    assert (good.deletion_area, bad.deletion_area) == pytest.approx((1 / 32, 31 / 32))
    assert good.score == pytest.approx(15 / 16)
    assert bad.score == pytest.approx(-15 / 16)


def test_comparing_names_the_better_one_or_none():
    image = corner_image()
    score = target_score(Corner(), image[None], "multilabel")
    right = torch.zeros(4, 4)
    right[0, 0] = 1
    found = compare(Corner(), image, {"good": right, "bad": -right}, score)
    assert set(found) == {"good", "bad", "random"}
    assert found["good"].score > found["random"].score > found["bad"].score
    assert best_of(found) == "good"
    assert best_of({name: found[name] for name in ("bad", "random")}) is None
    again = compare(Corner(), image, {"good": right}, score)
    assert np.array_equal(again["random"].deletion, found["random"].deletion)  # the same orders every time


def test_areas_and_averages():
    shares = np.array([0, 0.5, 1])
    assert area(shares, np.array([1.0, 1.0, 0.0])) == 0.75
    first = Curves(shares, np.array([1.0, 0.5, 0.0]), np.array([0.0, 1.0, 1.0]))
    second = Curves(np.array([0, 1.0]), np.array([1.0, 0.0]), np.array([0.0, 1.0]))
    mean = average([first, second])
    assert mean.deletion.tolist() == [1.0, 0.5, 0.0]
    assert mean.insertion.tolist() == [0.0, 0.75, 1.0]
