"""The walk through Swin: its own steps, with shapes, ending in the model's answer."""

# ruff: noqa: RUF001  formulas and sizes are written as people write them

from __future__ import annotations

import numpy as np
import pytest
import torch

from tests.explanation.methods.test_stages import small
from vitrail.explanation.walk.walk import walk


@pytest.mark.parametrize("name", ["swin-mu", "swinv2-mu"])
@pytest.mark.parametrize("size", [(32, 48), (28, 44)], ids=str)
def test_every_block_is_walked_to_the_models_answer(name, size):
    model = small(name)
    picture = np.random.default_rng(0).integers(0, 256, (*size, 3), np.uint8)
    images = torch.from_numpy(picture).permute(2, 0, 1)[None] / 127.5 - 1
    with torch.no_grad():
        expected = model(images)[0].numpy()
    for block in range(5):
        found = walk(model, images, picture, ["a", "b", "c"], block=block, patch=(6, 10))
        assert np.abs(found.outputs - expected).max() <= 1e-4
        titles = [step.title for step in found.steps]
        assert sum("patch merging" in title for title in titles) == block // 2
        for step in found.steps:
            assert step.title and step.formula and step.shape and step.text
            assert all(figure.values.size for figure in step.figures)
        shares = next(step for step in found.steps if step.title.endswith("softmax inside the window")).figures[0]
        assert shares.values.sum() == pytest.approx(1, abs=1e-5)


def test_the_steps_of_a_shifted_block_in_order():
    found = walk(small("swin-mu"), torch.randn(1, 3, 32, 48), np.zeros((32, 48, 3), np.uint8), block=3, patch=(6, 10))
    titles = [step.title.removeprefix("Block 3 (of 0 to 4, stage 1): ") for step in found.steps]
    assert titles[3:] == [
        "Stage 1 begins: patch merging",
        "each token is normalised",
        "queries, keys and values",
        "the grid is cut into windows",
        "the grid is shifted",
        "the mask",
        "scores, and a bias for where tokens stand",
        "softmax inside the window",
        "what token 3,5 looks at",
        "what windows save",
        "back on the grid, mixed by W_O",
        "residual around attention",
        "the MLP",
        "residual around the MLP",
        "The final norm",
        "The mean of the patches",
        "The head",
        "Softmax",
    ]
    steps = dict(zip(titles, found.steps, strict=True))
    assert steps["Stage 1 begins: patch merging"].shape == "(96, 16) → (24, 64) → (24, 32)"
    # 4 x 6 tokens padded to 4 x 8: two windows of 16
    assert steps["the grid is cut into windows"].shape == "(2, 24, 16) → (2, 2, 16, 16)"
    assert "padded with zeros to 4 × 8" in steps["the grid is cut into windows"].text
    assert "0 down and 2 across" in steps["the grid is shifted"].text  # one window covers the rows
    cost = steps["what windows save"]
    assert cost.shape == "N = 24, M = 16, D = 32"
    assert "512 instead of 576" in cost.text
    assert "1.1 times less" in cost.text  # 2 · 24² · 32 against 2 · 32 · 16 · 32
