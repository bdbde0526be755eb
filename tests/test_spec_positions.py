"""SPEC 2: [CLS], registers and positions."""

from __future__ import annotations

import math

import pytest
import torch

from vitrail.model.config import CHOICES
from vitrail.model.patches import patchify, unpatchify
from vitrail.model.positions import FixedPositions, LearnedPositions, RotaryPositions, resample, sincos1d, sincos2d
from vitrail.model.presets import preset
from vitrail.model.vit import ViT

KINDS = CHOICES["positions"]


def tiny(**changes):
    return preset("mu/4", **{"image_size": 16, "classes": 5, **changes})


# ---- [CLS]


def test_cls_is_one_learned_vector_at_slot_0(lively):
    model = lively(tiny(positions="none"))
    x, *_ = model.embed(torch.randn(3, 3, 16, 16))
    assert x.shape == (3, 17, 32)
    assert model.cls_token.shape == (1, 32)
    assert model.cls_token.requires_grad
    assert torch.equal(x[:, 0], model.cls_token.expand(3, -1))


def test_cls_starts_normal_with_deviation_0_02_or_as_zeros():
    torch.manual_seed(0)
    normal = ViT(tiny(width=512, mlp_width=1)).cls_token
    assert normal.std().item() == pytest.approx(0.02, rel=0.15)
    assert abs(normal.mean().item()) < 0.004
    assert normal.abs().max() > 0.05  # not cut
    zeros = ViT(tiny(cls_init="zeros", registers=2))
    assert zeros.cls_token.count_nonzero() == 0
    assert zeros.registers.count_nonzero() == 0


def test_cls_is_optional():
    config = tiny(cls_token=False, pool="mean")
    model = ViT(config)
    assert model.cls_token is None
    assert (config.tokens, model.embed(torch.zeros(1, 3, 16, 16))[0].shape[1]) == (16, 16)
    assert model.features(torch.zeros(1, 3, 16, 16)).cls is None


# ---- registers


def test_registers_are_extra_tokens_that_no_patch_grid_contains(lively):
    model = lively(tiny(registers=3))
    images = torch.randn(2, 3, 16, 16)
    x, _, grid, _ = model.embed(images)
    assert x.shape == (2, 1 + 3 + 16, 32)
    features = model.features(images, blocks=[0])
    assert (features.registers.shape, features.patches.shape, grid) == ((2, 3, 32), (2, 16, 32), (4, 4))
    assert features.blocks[0].shape == (2, 20, 32)
    whole = model.norm(features.blocks[0])
    assert torch.equal(whole, torch.cat([features.cls[:, None], features.registers, features.patches], dim=1))


@pytest.mark.parametrize("kind", KINDS)
def test_registers_have_no_position_and_patches_keep_theirs(lively, kind):
    model = lively(tiny(registers=2, positions=kind))
    images = torch.zeros(1, 3, 16, 16)
    x, rope, *_ = model.embed(images)
    assert torch.equal(x[0, 1:3], model.registers)
    if kind not in ("rotary", "none"):
        torch.testing.assert_close(x[0, 3:], model.stem(images)[0] + model.positions((4, 4))[3:])
    assert rope is None or rope.shape[1] == 16


# ---- the five kinds


def test_learned_positions_are_the_default_and_have_n_plus_1_rows():
    model = ViT(tiny())
    assert isinstance(model.positions, LearnedPositions)
    assert model.positions.table.shape == (17, 32)
    assert model.positions.table.requires_grad


@pytest.mark.parametrize("kind", ["sincos1d", "sincos2d", "rotary", "none"])
def test_the_other_four_kinds_learn_nothing(kind):
    model = ViT(tiny(positions=kind))
    assert not any("positions" in name or "rotary" in name for name, _ in model.named_parameters())
    assert not any("positions" in name or "rotary" in name for name in model.state_dict())
    assert isinstance(model.positions, FixedPositions) == kind.startswith("sincos")
    assert isinstance(model.rotary, RotaryPositions) == (kind == "rotary")


def test_the_worked_values_of_1_d_sinusoids():
    values = sincos1d(torch.tensor([1]), 4)[0]
    torch.testing.assert_close(values, torch.tensor([0.8415, 0.5403, 0.0099998, 0.99995]), atol=5e-5, rtol=0)
    assert values[2].item() == pytest.approx(0.0099998, abs=5e-8)
    assert values[3].item() == pytest.approx(math.cos(0.01))  # not the 0.9950 that one document prints
    assert sincos1d(torch.tensor([0]), 4)[0].tolist() == [0, 1, 0, 1]


def test_1_d_sinusoids_follow_their_formula_in_every_place():
    table = sincos1d(torch.arange(200), 12)
    for p in (0, 1, 7, 199):
        for i in range(6):
            angle = p / 10000 ** (2 * i / 12)
            assert table[p, 2 * i].item() == pytest.approx(math.sin(angle), abs=1e-6)
            assert table[p, 2 * i + 1].item() == pytest.approx(math.cos(angle), abs=1e-6)


def test_the_worked_example_of_learned_positions():
    positions = LearnedPositions(tiny(image_size=(4, 8), width=4, heads=1, cls_token=False, pool="mean"))
    with torch.no_grad():
        positions.table.copy_(torch.tensor([[0.1, 0.2, 0.3, 0.4], [-0.1, 0, 0.1, 0.2]]))
    tokens = torch.tensor([[1.0, 1, 1, 1], [2, 2, 2, 2]])
    expected = torch.tensor([[1.1, 1.2, 1.3, 1.4], [1.9, 2.0, 2.1, 2.2]])
    torch.testing.assert_close(tokens + positions((1, 2)), expected)


def test_the_worked_example_of_learned_positions_inside_a_model():
    model = ViT(tiny(image_size=(4, 8), width=4, heads=1, cls_token=False, pool="mean", channels=1))
    with torch.no_grad():
        model.positions.table.copy_(torch.tensor([[0.1, 0.2, 0.3, 0.4], [-0.1, 0, 0.1, 0.2]]))
        model.stem.projection.weight.fill_(1 / 16)  # a token is its patch's mean, four times
        model.stem.projection.bias.zero_()
    ones_and_twos = torch.cat([torch.ones(1, 1, 4, 4), 2 * torch.ones(1, 1, 4, 4)], dim=3)
    x, *_ = model.embed(ones_and_twos)
    torch.testing.assert_close(x[0], torch.tensor([[1.1, 1.2, 1.3, 1.4], [1.9, 2.0, 2.1, 2.2]]))


def test_the_worked_dot_products_of_2_d_sinusoids():
    table = sincos2d((2, 2), 8)
    products = (table @ table.T).tolist()
    near, far = 3.54, 3.08
    expected = [[4.0, near, near, far], [near, 4.0, far, near], [near, far, 4.0, near], [far, near, near, 4.0]]
    for row, wanted in zip(products, expected, strict=True):
        assert [round(value, 2) for value in row] == wanted


def test_same_row_same_first_half_and_same_column_same_second_half():
    table = sincos2d((3, 5), 8).reshape(3, 5, 8)
    assert torch.equal(table[..., :4], table[:, :1, :4].expand(3, 5, 4))
    assert torch.equal(table[..., 4:], table[:1, :, 4:].expand(3, 5, 4))
    assert torch.equal(table[:, 0, :4], sincos1d(torch.arange(3), 4))
    assert torch.equal(table[0, :, 4:], sincos1d(torch.arange(5), 4))
    assert table.reshape(15, 8).unique(dim=0).shape[0] == 15  # no two places alike


# ---- the position of [CLS]


def test_cls_may_have_a_fixed_position():
    one = FixedPositions(tiny(positions="sincos1d"))((4, 4))
    assert torch.equal(one, sincos1d(torch.arange(17), 32))  # slot 0, then the patches from 1
    two = FixedPositions(tiny(positions="sincos2d"))((4, 4))
    assert two[0].count_nonzero() == 0  # neither row nor column
    assert torch.equal(two[1:], sincos2d((4, 4), 32))


@pytest.mark.parametrize("kind", ["learned", "sincos1d", "sincos2d"])
def test_cls_may_have_a_learned_position_or_none(lively, kind):
    learned = lively(tiny(positions=kind, cls_position="learned")).positions
    assert torch.equal(learned((4, 4))[0], learned.table[0])
    assert learned.table[0].requires_grad
    none = lively(tiny(positions=kind, cls_position="none")).positions
    assert none((4, 4))[0].count_nonzero() == 0
    if kind == "learned":
        assert none.table.shape == (16, 32)
    else:
        assert torch.equal(none((4, 4))[1:], learned((4, 4))[1:])
        assert none.table is None


def test_positions_are_added_to_cls_and_patches(lively):
    model = lively(tiny())
    images = torch.randn(2, 3, 16, 16)
    x, *_ = model.embed(images)
    bare = torch.cat([model.cls_token.expand(2, 1, -1), model.stem(images)], dim=1)
    torch.testing.assert_close(x, bare + model.positions.table)


# ---- what positions are for


def shuffled(images, order):
    return unpatchify(patchify(images, (4, 4))[:, order], (4, 4), (4, 4))


def test_without_positions_permuted_patches_give_permuted_outputs_and_the_same_cls(lively):
    model = lively(tiny(positions="none", depth=3, registers=1)).double()
    images, order = torch.randn(2, 3, 16, 16).double(), torch.randperm(16)
    before, after = model.features(images), model.features(shuffled(images, order))
    torch.testing.assert_close(after.patches, before.patches[:, order])
    torch.testing.assert_close(after.cls, before.cls)
    torch.testing.assert_close(after.registers, before.registers)
    torch.testing.assert_close(model(shuffled(images, order)), model(images))


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "none"])
def test_with_positions_a_permutation_changes_the_answer(lively, kind):
    model = lively(tiny(positions=kind, depth=3)).double()
    images, order = torch.randn(2, 3, 16, 16).double(), torch.arange(16).flip(0)
    before, after = model.features(images), model.features(shuffled(images, order))
    assert (after.patches - before.patches[:, order]).abs().max() > 1e-2
    assert (after.cls - before.cls).abs().max() > 1e-3
    assert (model(shuffled(images, order)) - model(images)).abs().max() > 1e-3


# ---- another size at run time


@pytest.mark.parametrize("size", [(24, 24), (8, 8), (8, 24), (20, 12), (4, 4)])
@pytest.mark.parametrize("kind", KINDS)
def test_another_size_gives_what_a_model_built_for_it_gives(lively, kind, size):
    model = lively(tiny(positions=kind, depth=2, registers=2))
    grid = size[0] // 4, size[1] // 4
    other = ViT(model.config.replace(image_size=size)).eval()
    weights = model.state_dict()
    if kind == "learned":
        table = weights["positions.table"]
        weights["positions.table"] = torch.cat([table[:1], resample(table[1:], (4, 4), grid, "bicubic_antialias")])
    other.load_state_dict(weights)
    images = torch.randn(2, 3, *size)
    assert model.features(images).grid == grid
    torch.testing.assert_close(model(images), other(images))
    torch.testing.assert_close(model.features(images).patches, other.features(images).patches)


def test_fixed_positions_are_recomputed_for_another_grid():
    assert torch.equal(FixedPositions(tiny(positions="sincos2d"))((3, 7))[1:], sincos2d((3, 7), 32))
    assert torch.equal(FixedPositions(tiny(positions="sincos1d"))((3, 7)), sincos1d(torch.arange(22), 32))


def test_learned_positions_are_resampled_and_that_of_cls_is_kept(lively):
    positions = lively(tiny()).positions
    there = positions((6, 3))
    assert there.shape == (1 + 18, 32)
    assert torch.equal(there[0], positions.table[0])
    assert torch.equal(positions((4, 4)), positions.table)
