"""The walk ends where the model ends, and every step tells its formula, its shape and real numbers."""

# ruff: noqa: RUF001  formulas and sizes are written as people write them

from __future__ import annotations

import numpy as np
import pytest
import torch

from vitrail.explanation.walk.walk import position_likeness, walk
from vitrail.explanation.walk.walk_answer import strip
from vitrail.explanation.walk.walk_steps import Figure, matrix, mosaic
from vitrail.model.config import ViTConfig

VARIANTS = {
    "plain": {},
    "registers, rotary": {"registers": 3, "positions": "rotary"},
    "distilled": {"distillation": True},
    "mean": {"cls_token": False, "pool": "mean", "positions": "sincos2d"},
    "mean, norm after": {"cls_token": False, "pool": "mean", "final_norm": "pooled"},
    "both": {"pool": "cls_mean", "positions": "sincos1d"},
    "attention pool": {"cls_token": False, "pool": "attention"},
    "post-norm": {"norm": "post"},
    "swiglu": {"activation": "swiglu", "layer_scale": 0.5},
    "mlp head": {"head": "mlp", "positions": "none"},
    "conv stem": {"stem": "conv"},
    "no head": {"classes": 0},
    "one output": {"classes": 1},
    "grey": {"channels": 1},
}


def small(lively, **changes):
    config = {"image_size": 32, "patch_size": 8, "width": 32, "heads": 2, "depth": 3, "classes": 3, **changes}
    return lively(ViTConfig(**config))


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("block", [0, -1])
def test_the_steps_end_in_the_models_answer(variant, block, lively):
    model = small(lively, **VARIANTS[variant])
    picture = np.random.default_rng(0).integers(0, 256, (24, 40, model.config.channels), np.uint8)
    images = torch.from_numpy(picture).permute(2, 0, 1)[None] / 127.5 - 1
    found = walk(model, images, picture, ["a", "b", "c"], block=block, patch=(2, 4))
    with torch.no_grad():
        assert np.abs(found.outputs - model(images)[0].numpy()).max() <= 1e-4
    assert found.block == block % 3
    for step in found.steps:
        assert step.title and step.formula and step.shape and step.text
        for figure in step.figures:
            assert figure.values.size
            if figure.kind != "pixels":
                assert np.isfinite(figure.values[~np.isnan(figure.values)]).all()


def test_it_tells_the_stages_of_the_lecture_in_order(lively):
    model = small(lively)
    picture = np.zeros((32, 32, 3), np.uint8)
    found = walk(model, torch.randn(1, 3, 32, 32), picture, ["a", "b", "c"])
    titles = [step.title.removeprefix("Block 2 (of 0 to 2): ") for step in found.steps]
    assert titles == [
        "The image becomes patches",
        "A patch becomes a list of numbers",
        "The list becomes a token",
        "[CLS] in front",
        "Positions",
        "each token is normalised",
        "queries, keys and values",
        "scores",
        "softmax",
        "what [CLS] looks at",
        "heads, side by side",
        "mixed by W_O",
        "residual around attention",
        "the MLP",
        "residual around the MLP",
        "The final norm",
        "Slot 0 is read",
        "The head",
        "Softmax",
    ]
    shapes = [step.shape for step in found.steps]
    assert shapes[0] == "(3, 32, 32) → 4 × 4 patches"
    assert shapes[1] == "(8, 8, 3) → (192,)"
    assert shapes[2] == "(16, 192) → (16, 32)"
    assert shapes[3] == "(16, 32) → (17, 32)"
    assert shapes[6] == "(17, 32) → 3 × (2, 17, 16)"
    assert shapes[-1] == "(3,)"
    shares = found.steps[8].figures[0]
    assert shares.values.sum(1) == pytest.approx(np.ones(17), abs=1e-5)
    softmax = found.steps[-1].figures[0]
    assert softmax.values.sum() == pytest.approx(1)
    assert list(softmax.values) == sorted(softmax.values, reverse=True)


def test_of_many_tokens_only_one_row_of_the_map_is_shown(lively):
    model = small(lively, image_size=192)
    found = walk(model, torch.randn(1, 3, 192, 192), np.zeros((192, 192, 3), np.uint8))
    scores = next(step for step in found.steps if step.title.endswith("scores"))
    assert scores.figures[0].values.shape[0] == 1
    assert scores.figures[0].left_out


@pytest.mark.parametrize(
    ("task", "last"), [("multilabel", "Sigmoid"), ("regress", "The head"), ("classify", "Softmax")]
)
def test_the_last_step_is_that_of_the_task(task, last, lively):
    found = walk(small(lively), torch.randn(1, 3, 32, 32), np.zeros((32, 32, 3), np.uint8), task=task)
    assert found.steps[-1].title == last


@pytest.mark.parametrize("positions", ["learned", "sincos1d", "sincos2d", "rotary"])
def test_a_position_is_most_like_itself(positions, lively):
    model = small(lively, positions=positions)
    rope = None if model.rotary is None else model.rotary((3, 5))
    with torch.no_grad():
        likeness = position_likeness(model, rope, (3, 5))
    assert likeness.shape == (15, 15)
    assert torch.allclose(likeness.diagonal(), torch.ones(15), atol=1e-5)
    assert (likeness <= 1 + 1e-5).all()


def test_a_large_matrix_is_thinned_and_says_so():
    figure = matrix("large", torch.arange(600 * 1000.0).reshape(600, 1000))
    assert figure.values.shape == (200, 334)
    assert figure.left_out
    assert not matrix("small", torch.zeros(3, 3)).left_out
    assert mosaic(torch.ones(2, 3, 4, 5)).shape == (9, 17)
    assert strip(torch.arange(12)).shape == (3, 4)
    assert strip(torch.arange(13)).shape == (1, 13)
    assert Figure("", np.zeros(1)).kind == "signed"
