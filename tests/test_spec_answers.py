"""SPEC 4: from tokens to answers, as far as the network goes; losses and decoding are the tasks' own."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from vitrail.model.config import ViTConfig
from vitrail.model.presets import preset
from vitrail.model.vit import ViT


def tiny(**changes):
    return preset("mu/4", **{"image_size": 16, "classes": 5, "depth": 2, **changes})


IMAGES = torch.randn(3, 3, 16, 16, generator=torch.Generator().manual_seed(1))


def head_of(model, pooled):
    return F.linear(pooled, model.head.out.weight, model.head.out.bias)


def test_cls_pooling_is_the_default_and_reads_slot_0(lively):
    assert ViTConfig().pool == "cls"
    model = lively(tiny(registers=2))
    torch.testing.assert_close(model(IMAGES), head_of(model, model.features(IMAGES).cls))


@pytest.mark.parametrize("prefix", [{"cls_token": False}, {}, {"registers": 3}])
def test_mean_pooling_is_the_mean_over_patches_alone(lively, prefix):
    model = lively(tiny(pool="mean", **prefix))
    patches = model.features(IMAGES).patches
    assert patches.shape == (3, 16, 32)
    torch.testing.assert_close(model(IMAGES), head_of(model, patches.mean(dim=1)))


def test_attention_pooling_weighs_every_token(lively):
    model = lively(tiny(pool="attention", positions="none"))
    assert model(IMAGES).shape == (3, 5)
    tokens = torch.randn(2, 17, 32)
    pooled = model.pool(tokens)
    assert pooled.shape == (2, 32)
    torch.testing.assert_close(model.pool(tokens.flip(1)), pooled)  # one query: no order among the tokens
    for slot in (0, 1, 16):
        changed = tokens.clone()
        changed[:, slot] += torch.randn(32)
        assert (model.pool(changed) - pooled).abs().max() > 1e-4


@pytest.mark.parametrize(
    ("final_norm", "pool"),
    [
        ("tokens", lambda patches, norm: norm(patches).mean(dim=1)),
        ("pooled", lambda patches, norm: norm(patches.mean(dim=1))),
        ("none", lambda patches, norm: patches.mean(dim=1)),
    ],
)
def test_the_norm_comes_before_pooling_after_it_or_not_at_all(lively, final_norm, pool):
    model = lively(tiny(pool="mean", final_norm=final_norm))
    patches = model.features(IMAGES, blocks=[-1]).blocks[0][:, 1:]
    torch.testing.assert_close(model(IMAGES), head_of(model, pool(patches, model.norm)))


def test_dropout_stands_between_pooling_and_head_in_training_only(lively):
    model = lively(tiny(head_dropout=0.5))
    seen = []
    model.head.out.register_forward_pre_hook(lambda module, inputs: seen.append(inputs[0]))
    still = model(IMAGES)
    assert torch.equal(still, model(IMAGES))
    torch.manual_seed(0)
    model.train()(IMAGES)
    assert (seen[0] != 0).all()
    kept = seen[-1] != 0
    assert 0.2 < kept.float().mean() < 0.8
    torch.testing.assert_close(seen[-1][kept], 2 * seen[0][kept])


def test_the_head_is_one_linear_layer_or_an_mlp(lively):
    linear = lively(tiny())
    assert linear.head.hidden is None
    assert linear.head.out.weight.shape == (5, 32)
    mlp = lively(tiny(head="mlp", head_width=12))
    pooled = mlp.features(IMAGES).cls
    hidden = torch.tanh(pooled @ mlp.head.hidden.weight.T + mlp.head.hidden.bias)
    assert hidden.shape == (3, 12)
    torch.testing.assert_close(mlp(IMAGES), head_of(mlp, hidden))


def test_every_patch_token_can_be_an_answer(lively):
    """What segmentation builds on."""
    model = lively(tiny(pool="none", registers=2))
    answers = model(IMAGES)
    assert answers.shape == (3, 16, 5)
    torch.testing.assert_close(answers, head_of(model, model.features(IMAGES).patches))


def test_one_vector_an_image_can_be_the_answer(lively):
    """What retrieval builds on."""
    model = lively(tiny(classes=0))
    assert model.head is None
    vectors = model(IMAGES)
    assert vectors.shape == (3, 32)
    torch.testing.assert_close(vectors, model.features(IMAGES).cls)


def cross_entropy(logits):
    truth = F.one_hot(torch.arange(3), 5).float()
    return -(truth * logits.softmax(dim=-1).log()).sum()  # -sum y log p


def half_squared_error(numbers):
    return (0.5 * (numbers - torch.ones_like(numbers)) ** 2).sum()


@pytest.mark.parametrize("loss", [cross_entropy, half_squared_error])
@pytest.mark.parametrize("pool", ["cls", "mean", "attention"])
def test_everything_trains_end_to_end_patch_projection_included(pool, loss):
    torch.manual_seed(0)
    model = ViT(tiny(pool=pool)).train()
    optimiser = torch.optim.SGD(model.parameters(), lr=0.005)
    before = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    losses = []
    for _ in range(5):
        optimiser.zero_grad()
        losses.append(loss(model(IMAGES)))
        losses[-1].backward()
        optimiser.step()
    assert losses[-1] < losses[0]
    still = [name for name, parameter in model.named_parameters() if torch.equal(parameter, before[name])]
    assert still == []
    assert (model.stem.projection.weight - before["stem.projection.weight"]).abs().max() > 0
