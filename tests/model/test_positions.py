"""Positions against independent implementations: resampling rules and rotary turns."""

from __future__ import annotations

import math

import pytest
import scipy.ndimage
import torch
import torch.nn.functional as F
from timm.layers import RotaryEmbeddingCat, resample_abs_pos_embed

from vitrail.model.config import CHOICES
from vitrail.model.positions import FixedPositions, RotaryPositions, resample, rotate
from vitrail.model.presets import preset

RULES = CHOICES["resample"]
GRIDS = [((4, 4), (7, 7)), ((4, 4), (3, 3)), ((4, 4), (2, 9)), ((3, 5), (6, 4)), ((14, 14), (16, 12))]


def rotary(**changes):
    return RotaryPositions(preset("mu/4", **{"image_size": 16, "positions": "rotary", **changes}))


# ---- resampling


@pytest.mark.parametrize(("old", "new"), GRIDS)
@pytest.mark.parametrize("antialias", [True, False])
def test_bicubic_resampling_is_timms(old, new, antialias):
    table = torch.randn(old[0] * old[1], 6)
    theirs = resample_abs_pos_embed(
        table[None], list(new), list(old), num_prefix_tokens=0, interpolation="bicubic", antialias=antialias
    )[0]
    torch.testing.assert_close(resample(table, old, new, "bicubic_antialias" if antialias else "bicubic"), theirs)


@pytest.mark.parametrize(("old", "new"), GRIDS)
def test_bilinear_resampling_is_timms(old, new):
    table = torch.randn(old[0] * old[1], 6)
    theirs = resample_abs_pos_embed(
        table[None], list(new), list(old), num_prefix_tokens=0, interpolation="bilinear", antialias=True
    )[0]
    torch.testing.assert_close(resample(table, old, new, "bilinear_antialias"), theirs)


@pytest.mark.parametrize(("old", "new"), [grids for grids in GRIDS if grids[0][0] == grids[0][1]])
def test_bicubic_offset_resampling_is_metas(old, new):
    """interpolate_pos_encoding of facebookresearch/dino, whose positions are square."""
    table = torch.randn(1, old[0] * old[1], 6)
    n, dim = table.shape[1:]
    h0, w0 = new[0] + 0.1, new[1] + 0.1
    theirs = F.interpolate(
        table.reshape(1, int(math.sqrt(n)), int(math.sqrt(n)), dim).permute(0, 3, 1, 2),
        scale_factor=(h0 / math.sqrt(n), w0 / math.sqrt(n)),
        mode="bicubic",
    )
    assert (int(h0), int(w0)) == tuple(theirs.shape[-2:])
    theirs = theirs.permute(0, 2, 3, 1).view(-1, dim)
    torch.testing.assert_close(resample(table[0], old, new, "bicubic_offset"), theirs)


@pytest.mark.parametrize(("old", "new"), GRIDS)
def test_linear_resampling_is_scipys_zoom_as_in_big_vision(old, new):
    table = torch.randn(old[0] * old[1], 6)
    zoom = (new[0] / old[0], new[1] / old[1], 1)
    theirs = torch.from_numpy(scipy.ndimage.zoom(table.reshape(*old, 6).numpy(), zoom, order=1)).reshape(-1, 6)
    torch.testing.assert_close(resample(table, old, new, "linear"), theirs, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("rule", RULES)
def test_the_same_grid_is_left_as_it_is(rule):
    table = torch.randn(12, 6)
    assert resample(table, (3, 4), (3, 4), rule) is table


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize(("old", "new"), [*GRIDS, ((1, 1), (5, 3)), ((5, 3), (1, 1)), ((2, 8), (8, 2))])
def test_rows_stay_rows_and_columns_columns(rule, old, new):
    """A table whose dims are a constant, its row and its column: to any grid, each stays what it is."""
    rows, columns = torch.meshgrid(*(torch.arange(float(side)) for side in old), indexing="ij")
    table = torch.stack([torch.full(old, 0.7), rows, columns], dim=-1).flatten(0, 1)
    there = resample(table, old, new, rule).reshape(*new, 3)
    torch.testing.assert_close(there[..., 0], torch.full(new, 0.7))
    torch.testing.assert_close(there[..., 1], there[:, :1, 1].expand(new))
    torch.testing.assert_close(there[..., 2], there[:1, :, 2].expand(new))
    flat = rule.startswith("bilinear")  # beyond the middle of the first and the last patch
    for steps, axis in ((there[:, 0, 1].diff(), 0), (there[0, :, 2].diff(), 1)):
        if old[axis] > 1 and new[axis] > 1:
            assert (steps >= 0).all() and steps.sum() > 0 if flat else (steps > 0).all()


@pytest.mark.parametrize("rule", RULES)
def test_resampling_keeps_the_type_and_double_keeps_its_digits(rule):
    table = torch.randn(16, 6, dtype=torch.float64)
    double, single, half = (
        resample(table.to(t), (4, 4), (6, 5), rule) for t in (torch.float64, torch.float32, torch.bfloat16)
    )
    assert (double.dtype, single.dtype, half.dtype) == (torch.float64, torch.float32, torch.bfloat16)
    assert 0 < (double - single).abs().max() < 1e-5  # not computed in float32 on the way
    exact = resample(table.bfloat16().float(), (4, 4), (6, 5), rule)
    assert torch.equal(half, exact.bfloat16())  # computed in float32, rounded once


@pytest.mark.parametrize("rule", RULES)
def test_gradients_flow_through_resampling(rule):
    table = torch.randn(16, 6, requires_grad=True)
    resample(table, (4, 4), (7, 7), rule).square().sum().backward()
    assert (table.grad != 0).all()


# ---- fixed positions


@pytest.mark.parametrize("kind", ["sincos1d", "sincos2d"])
def test_distillation_has_a_fixed_position_no_more_than_registers_do(kind):
    config = preset("mu/4", image_size=16, positions=kind, distillation=True, registers=1)
    plain = FixedPositions(preset("mu/4", image_size=16, positions=kind))
    for grid in [(4, 4), (2, 5)]:
        table = FixedPositions(config)(grid)
        assert table[1:3].count_nonzero() == 0
        assert torch.equal(table[0], plain(grid)[0])
        assert torch.equal(table[3:], plain(grid)[1:])


# ---- rotary, against transformers' DINOv3


@pytest.fixture(scope="module")
def dinov3():
    from transformers.models.dinov3_vit import modeling_dinov3_vit

    return modeling_dinov3_vit


@pytest.mark.parametrize("grid", [(4, 4), (14, 14), (3, 7), (9, 2), (1, 1), (1, 6)])
@pytest.mark.parametrize(("width", "heads", "base"), [(32, 2, 100.0), (192, 3, 100.0), (48, 4, 10.0)])
def test_rotary_turns_are_dinov3s(dinov3, grid, width, heads, base):
    config = dinov3.DINOv3ViTConfig(
        patch_size=4, image_size=16, hidden_size=width, num_attention_heads=heads, rope_theta=base
    )
    pixels = torch.zeros(1, 3, 4 * grid[0], 4 * grid[1])
    cos, sin = dinov3.DINOv3ViTRopePositionEmbedding(config).eval()(pixels)
    ours = rotary(width=width, heads=heads, rotary_base=base)(grid)
    torch.testing.assert_close(ours, torch.stack([cos, sin]), atol=2e-6, rtol=0)


@pytest.mark.parametrize("grid", [(4, 4), (14, 14), (3, 7), (1, 6)])
@pytest.mark.parametrize("start", [0.0, 1.0])
def test_counted_turns_are_those_of_eva(grid, start):
    """timm's, of neighbouring dims, in the order of ours."""
    theirs = RotaryEmbeddingCat(
        16, in_pixels=False, ref_feat_shape=(16, 8), grid_offset=start, temperature=10000.0
    ).get_embed(grid)
    sin, cos = theirs.chunk(2, dim=-1)
    order = [*range(0, 16, 2), *range(1, 16, 2)]
    ours = rotary(width=32, heads=2, rotary_base=10000.0, rotary_grid=(16, 8), rotary_start=start)(grid)
    torch.testing.assert_close(ours, torch.stack([cos[:, order], sin[:, order]]), atol=2e-6, rtol=0)


@pytest.mark.parametrize("prefix", [0, 1, 5])
@pytest.mark.parametrize("grid", [(4, 4), (3, 7)])
def test_rotating_is_dinov3s(dinov3, grid, prefix):
    rope = rotary()(grid)
    q, k = torch.randn(2, 2, 2, prefix + grid[0] * grid[1], 16)
    theirs = dinov3.apply_rotary_pos_emb(q, k, *rope)
    torch.testing.assert_close((rotate(q, rope), rotate(k, rope)), theirs)


def test_prefix_tokens_are_not_turned_and_lengths_are_kept():
    rope, x = rotary()((4, 4)), torch.randn(2, 2, 3 + 16, 16)
    turned = rotate(x, rope)
    assert torch.equal(turned[:, :, :3], x[:, :, :3])
    assert (turned[:, :, 3:] - x[:, :, 3:]).abs().max() > 0.1
    torch.testing.assert_close(turned.norm(dim=-1), x.norm(dim=-1))


def test_a_turned_score_depends_on_the_displacement_alone():
    rope = rotary()((5, 6)).double()
    q, k = torch.randn(2, 16, dtype=torch.float64)
    same = torch.stack([q, k])[:, None, None].expand(2, 1, 30, 16)  # one query and one key at every place
    turned_q, turned_k = (rotate(x[None], rope)[0, 0].reshape(5, 6, 16) for x in same)
    down_one_right_two = (turned_q[:-1, :-2] * turned_k[1:, 2:]).sum(-1)
    torch.testing.assert_close(down_one_right_two, down_one_right_two[:1, :1].expand(4, 4), atol=1e-5, rtol=0)
    right_one = (turned_q[:, :-1] * turned_k[:, 1:]).sum(-1)
    assert (right_one[0, 0] - down_one_right_two[0, 0]).abs() > 1e-3


def test_rotary_turns_follow_the_values_type():
    x = torch.randn(1, 2, 17, 16, dtype=torch.bfloat16)
    assert rotate(x, rotary()((4, 4))).dtype == torch.bfloat16
