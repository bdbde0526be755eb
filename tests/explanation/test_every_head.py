"""Every head, with and without [CLS], registers and positions after each block, is explained from its own tokens."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import pytest
import torch

import vitrail
from vitrail.explanation.forward_pass import run_forward_pass, run_steps
from vitrail.explanation.methods.attention_maps import attention_maps
from vitrail.explanation.methods.rollout import rollout
from vitrail.explanation.methods.weighted_attention import weighted_attention
from vitrail.explanation.target_score import target_score
from vitrail.explanation.walk.walk_block import block_steps
from vitrail.model.config import ViTConfig
from vitrail.weights.checkpoint import Checkpoint
from vitrail.weights.preprocessing import Preprocessing

TASKS = {
    "linear": "classify",
    "mlp": "classify",
    "mask_linear": "segment",
    "mask_decoder": "segment",
    "mask_queries": "segment",
    "box_tokens": "detect",
    "box_decoder": "detect",
}
CASES = [
    pytest.param(
        {"head": head, "cls_token": cls_token, "registers": registers, "block_positions": block_positions},
        id=head + "-cls" * cls_token + "-registers" * (registers > 0) + "-blocks" * block_positions,
    )
    for head, cls_token, registers, block_positions in product(TASKS, (True, False), (0, 2), (False, True))
]


def checkpoint(lively, **changes: Any) -> Checkpoint:
    settings = {"image_size": 32, "patch_size": 8, "width": 32, "heads": 2, "depth": 3, "classes": 3, **changes}
    settings |= {} if "pool" in changes else {"pool": "cls" if changes.get("cls_token", True) else "mean"}
    if settings.get("head") in ("box_tokens", "box_decoder"):
        settings["queries"] = 5
    model = lively(ViTConfig(**settings))
    task = TASKS[model.config.head]
    resize = "pad" if model.config.is_dense else "crop"
    preprocessing = Preprocessing(size=(32, 32), resize=resize)
    return Checkpoint(model, preprocessing, task, ["cat", "dog", "owl"])


def pixels() -> np.ndarray:
    return np.random.default_rng(0).integers(0, 256, (40, 60, 3), np.uint8)


@pytest.mark.parametrize("case", CASES)
def test_it_is_explained_from_end_to_end(case, lively):
    opened = checkpoint(lively, **case)
    query = None if case["cls_token"] else (1, 2)
    explanation = vitrail.explain(opened, pixels(), query=query, walk=True, every_query=True)
    prefix = opened.config.prefix
    attention, in_front = np.stack(explanation.attention), np.stack(explanation.prefix)
    assert attention.shape == (3, 2, 4, 4)
    assert in_front.shape == (3, 2, prefix)
    assert attention.sum((2, 3)) + in_front.sum(2) == pytest.approx(np.ones((3, 2)), abs=1e-5)
    assert [group.levels.shape for [group] in explanation.every_query] == 3 * [(prefix + 16, prefix + 16)]
    assert all(np.isfinite(values).all() for values in explanation.maps.values())
    assert np.abs(explanation.maps["relevance"]).max() > 0
    assert len(explanation.walk.steps) >= 15
    dense = opened.config.is_dense
    assert (explanation.answer is None) == dense
    titles = [step.title for step in explanation.walk.steps]
    assert ("The head" in titles) != dense
    assert any("in front" in title for title in titles) == (prefix > 0)


@pytest.mark.parametrize("case", CASES)
def test_the_hidden_states_are_the_models_own(case, lively):
    model = checkpoint(lively, **case).model
    images = torch.randn(2, 3, 32, 32)
    with torch.no_grad():
        features = model.features(images, blocks=range(3))
        outputs = model(images)
    forward_pass = run_forward_pass(model, images)
    steps = run_steps(model, images)
    for index, expected in enumerate(features.blocks):
        for step in (forward_pass.steps[index], steps[index]):
            assert torch.allclose(step.output, expected, atol=1e-5)
            assert index == 2 or torch.allclose(steps[index + 1].input, expected, atol=1e-5)
    assert torch.allclose(forward_pass.normed[:, model.prefix :], features.patches, atol=1e-5)
    if not model.config.is_dense:
        assert torch.allclose(forward_pass.outputs, outputs, atol=1e-5)
    with torch.no_grad():  # the walk's slow block gives what the model's own block gives
        _, output = block_steps(model, steps[-1].of_image(1), 0)
    assert torch.allclose(output, features.blocks[-1][1:], atol=1e-4)


@pytest.mark.parametrize("case", CASES)
def test_maps_sum_to_one(case, lively):
    model = checkpoint(lively, **case).model
    images = torch.randn(2, 3, 24, 40)
    target = target_score(model, images)
    maps = [rollout(model, images), weighted_attention(model, images, target)]
    for token_map in maps:
        assert token_map.patches.shape == (2, 3, 5)
        assert token_map.patches.sum((1, 2)) + token_map.prefix.sum(1) == pytest.approx(torch.ones(2), abs=1e-5)
    for attention in attention_maps(model, images, (0, 0)):
        assert attention.patches.sum((2, 3)) + attention.prefix.sum(2) == pytest.approx(torch.ones(2, 2), abs=1e-5)


def test_positions_after_each_block_reach_maps_and_rollout(lively):
    """They were left out: the maps were of hidden states that the model never had."""
    model = checkpoint(lively, block_positions=True, pool="mean", cls_token=False).model
    images = torch.randn(1, 3, 32, 32)
    with torch.no_grad():
        before = rollout(model, images).patches
        model.block_positions.table.mul_(-3)
        after = rollout(model, images).patches
    assert (before - after).abs().max() > 1e-4


@pytest.mark.parametrize("task", ["classify", "multilabel", "regress", "segment", "detect"])
def test_everything_costs_at_most_three_encoder_passes(task, lively):
    head = {"segment": "mask_queries", "detect": "box_decoder"}.get(task, "linear")
    opened = checkpoint(lively, head=head)
    opened.task = task
    passes: list[int] = []
    opened.model.blocks[0].register_forward_pre_hook(lambda _, arguments: passes.append(len(arguments[0])))
    explanation = vitrail.explain(opened, pixels(), walk=True, every_query=True)
    assert set(explanation.maps) == {"relevance", "weighted_attention", "rollout", "attention"}
    assert explanation.walk is not None
    assert passes == [1] * (3 if task == "regress" else 2)  # numbers are compared with those of a blank picture
