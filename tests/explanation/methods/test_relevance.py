"""Relevance adds up to the answer, finds evidence where it is known to be, and beats what is commonly used."""

from __future__ import annotations

import pytest
import torch

from vitrail.errors import VitrailError
from vitrail.explanation.methods.faithfulness import average, best_of, compare
from vitrail.explanation.methods.occlusion import occlusion
from vitrail.explanation.methods.relevance import linearised_gradients, relevance
from vitrail.explanation.methods.rollout import rollout
from vitrail.explanation.methods.weighted_attention import weighted_attention
from vitrail.explanation.target_score import target_score
from vitrail.model.config import ViTConfig

VARIANTS = {
    "plain": {},
    "registers, rotary": {"registers": 3, "positions": "rotary"},
    "distilled": {"distillation": True},
    "mean": {"cls_token": False, "pool": "mean"},
    "mean, norm after": {"cls_token": False, "pool": "mean", "final_norm": "pooled"},
    "both": {"pool": "cls_mean"},
    "attention pool": {"cls_token": False, "pool": "attention"},
    "post-norm": {"norm": "post"},
    "swiglu": {"activation": "swiglu", "layer_scale": 0.5},
    "quick gelu": {"activation": "quick_gelu", "stem_norm": True},
    "tanh": {"activation": "gelu_tanh", "qk_norm": True},
    "mlp head": {"head": "mlp"},
    "conv stem": {"stem": "conv"},
}


def small(lively, **changes):
    config = {"image_size": 32, "patch_size": 8, "width": 32, "heads": 2, "depth": 3, "classes": 3, **changes}
    return lively(ViTConfig(**config))


def without_biases(model):
    for name, parameter in model.named_parameters():
        if name.endswith("bias") and "stem" not in name:
            parameter.data.zero_()
    if model.pool.attention is not None:
        model.pool.attention.mlp.down.weight.data *= 0.1
    return model


# ---- it adds up


@pytest.mark.parametrize("variant", VARIANTS)
def test_parts_add_up_to_the_answer_in_a_network_without_biases(variant, lively):
    model = without_biases(small(lively, **VARIANTS[variant]))
    images = torch.randn(2, 3, 24, 40)
    score = target_score(model, images, "multilabel", target=1)
    [(step, slope)] = linearised_gradients(model, images, score)
    parts = (step.input * slope).sum((1, 2))
    assert torch.allclose(parts, score.outputs[:, 1], rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("variant", VARIANTS)
def test_any_kind_of_model_any_grid_any_batch(variant, lively):
    model = small(lively, dropout=0.3, **VARIANTS[variant])
    images = torch.randn(3, 3, 24, 40)
    with torch.no_grad():
        before = model(images)
    score = target_score(model, images)
    for method in (relevance, lambda *a: weighted_attention(*a).patches):
        model.train()
        together = method(model, images, score)
        assert together.shape == (3, 3, 5)
        assert together.isfinite().all()
        assert not together.requires_grad
        assert model.training  # as it was found
        alone = method(model, images[1:2], target_score(model, images[1:2]))
        assert torch.allclose(alone[0], together[1], rtol=1e-3, atol=1e-5)
        assert all(not module._forward_pre_hooks for module in model.modules())
        assert all(parameter.grad is None for parameter in model.parameters())
    with torch.no_grad():
        assert torch.equal(model.eval()(images), before)


def test_the_score_may_be_about_another_class(lively):
    model, images = small(lively), torch.randn(2, 3, 32, 32)
    maps = [relevance(model, images, target_score(model, images, target=kind)) for kind in range(3)]
    assert (maps[0] - maps[1]).abs().max() > 1e-3
    with pytest.raises(VitrailError, match="no output 3: the model has 3, 0 to 2"):
        target_score(model, images, target=3)


@pytest.mark.parametrize("task", ["classify", "multilabel", "regress", "embed"])
def test_every_task_has_a_score(task, lively):
    model = small(lively, classes=0 if task == "embed" else 3)
    images = torch.randn(2, 3, 32, 32)
    score = target_score(model, images, task)
    assert relevance(model, images, score).abs().max() > 0
    value = score.value(score.outputs)
    if task == "classify":
        assert torch.allclose(value, score.outputs.softmax(1).max(1).values)
    if task == "embed":
        assert torch.allclose(value, torch.ones(2))
    found = compare(model, images[0], {"relevance": torch.rand(4, 4)}, score)
    assert found["relevance"].deletion.shape == (17,)
    if task in ("regress", "embed"):
        assert found["relevance"].deletion[[0, -1]] == pytest.approx([1, 0], abs=1e-3)
        assert found["relevance"].insertion[[0, -1]] == pytest.approx([0, 1], abs=1e-3)


def test_a_model_that_answers_for_every_patch_is_refused(lively):
    model = small(lively, pool="none")
    with pytest.raises(VitrailError, match="answers for every patch"):
        target_score(model, torch.randn(1, 3, 32, 32))


def test_3137_tokens_need_no_matrix_of_all_pairs(lively, largest):
    model = small(lively, image_size=448, mlp_width=64, depth=2)
    images = torch.randn(1, 3, 448, 448)
    score = target_score(model, images)
    with largest:
        relevance(model, images, score)
    assert largest.entries <= 3137 * 3 * 64  # as much as the forward pass itself
    with largest:
        rollout(model, images)
        weighted_attention(model, images, score)
    assert largest.entries <= 2 * 256 * 3137  # some rows of each head at a time


# ---- gradient-weighted attention, against the authors' way


@pytest.mark.parametrize("variant", [{}, {"registers": 2}, {"distillation": True}, {"positions": "rotary"}])
def test_weighted_attention_is_that_of_whole_matrices(variant, lively, monkeypatch):
    model, images = small(lively, **variant), torch.randn(2, 3, 24, 40)
    score = target_score(model, images)
    found = weighted_attention(model, images, score)
    kept = []

    def attend(q, k, v, dropout=0.0, training=False, bias=None):
        a = (q @ k.transpose(-2, -1) / q.shape[-1] ** 0.5).softmax(-1)
        a.retain_grad()
        kept.append(a)
        return a @ v

    monkeypatch.setattr("vitrail.model.attention.attend", attend)
    read = 1 + int(model.config.distillation)
    score.score(model(images.requires_grad_())).sum().backward()
    tokens = kept[0].shape[-1]
    relevances = torch.eye(tokens).expand(2, -1, -1)
    for a in kept:
        weighted = (a.grad * a).clamp(min=0).mean(1)  # (B, rows, M); the last block has the read rows only
        full = torch.zeros(2, tokens, tokens)
        full[:, : weighted.shape[1]] = weighted
        relevances = relevances + full @ relevances
    expected = relevances[:, :read].mean(1).detach()
    expected = expected / expected.sum(1, keepdim=True)
    assert torch.allclose(torch.cat([found.prefix, found.patches.flatten(1)], dim=1), expected, atol=1e-6)


# ---- where the evidence is known


def inside(maps, scenes):
    mass = maps.clamp(min=0)
    return float(((mass * scenes.inside).sum((1, 2)) / mass.sum((1, 2))).mean())


@pytest.mark.parametrize("reading", ["seeing", "averaging"])
def test_relevance_is_in_the_shape_and_beats_rollout_and_random(reading, unseen, request):
    model = request.getfixturevalue(reading)
    score = target_score(model, unseen.images)
    assert (score.outputs.argmax(1) == unseen.classes).float().mean() >= 0.9
    maps = {"relevance": relevance(model, unseen.images, score), "rollout": rollout(model, unseen.images).patches}
    assert unseen.inside.float().mean() < 0.15
    assert inside(maps["relevance"], unseen) >= 0.6
    assert inside(maps["relevance"], unseen) > inside(maps["rollout"], unseen)
    each = [
        compare(model, image, {name: one[number] for name, one in maps.items()}, score, number=number)
        for number, image in enumerate(unseen.images)
    ]
    found = {name: average([curves[name] for curves in each]) for name in each[0]}
    assert found["relevance"].deletion_area < found["rollout"].deletion_area < found["random"].deletion_area
    assert found["relevance"].insertion_area > found["random"].insertion_area
    assert best_of(found) == "relevance"


def test_other_methods_find_the_shape_too(seeing, unseen):
    score = target_score(seeing, unseen.images)
    assert inside(weighted_attention(seeing, unseen.images, score).patches, unseen) >= 0.5
    assert inside(occlusion(seeing, unseen.images, score), unseen) >= 0.35
