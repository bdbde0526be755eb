"""Relative positions: the order of the table, the MLP's coordinates, and the way to another window."""

from __future__ import annotations

import math

import pytest
import torch
from timm.layers import resize_rel_pos_bias_table
from timm.models.swin_transformer import get_relative_position_index

from vitrail.model.swin.relative_bias import (
    BiasTable,
    LogSpacedBias,
    log_coordinates,
    relative_index,
    resample_table,
)

CPU = torch.device("cpu")


@pytest.mark.parametrize("window", [(7, 7), (3, 5), (1, 4), (1, 1)], ids=str)
def test_the_index_of_a_pair_is_that_of_its_offset(window):
    index = relative_index(window, CPU)
    assert torch.equal(index, get_relative_position_index(*window))
    assert index.unique().numel() == (2 * window[0] - 1) * (2 * window[1] - 1)


def test_a_bias_depends_on_the_offset_alone():
    table = BiasTable((3, 3), 2)
    table.initialise()
    bias = table((3, 3))
    assert bias.shape == (2, 9, 9)
    assert torch.equal(bias[:, 0, 4], bias[:, 4, 8])  # one down and one to the right
    assert not torch.equal(bias[:, 0, 4], bias[:, 4, 0])


@pytest.mark.parametrize(("old", "new"), [((7, 7), (12, 12)), ((7, 7), (4, 4)), ((7, 7), (7, 3)), ((4, 4), (8, 6))])
def test_a_table_goes_to_another_window_as_in_timm(old, new):
    table = torch.randn((2 * old[0] - 1) * (2 * old[1] - 1), 3, generator=torch.Generator().manual_seed(0))
    expected = resize_rel_pos_bias_table(table, new, ((2 * new[0] - 1) * (2 * new[1] - 1), 3))
    torch.testing.assert_close(resample_table(table, old, new), expected, atol=1e-5, rtol=0)


def test_the_middle_of_a_resampled_table_stays():
    table = torch.randn(9, 2)  # of a window of 2
    assert torch.allclose(resample_table(table, (2, 2), (5, 5))[40], table[4])


def test_log_coordinates_of_the_paper():
    """sign(o) log2(1 + 8 |o| / (window - 1)) / log2(8): the farthest neighbour is at log2(9) / 3."""
    coordinates = log_coordinates((3, 3), 0, CPU).unflatten(0, (5, 5))
    assert coordinates[0, 0].tolist() == pytest.approx([-math.log2(9) / 3] * 2)
    assert coordinates[2, 3].tolist() == pytest.approx([0, math.log2(5) / 3])
    larger = log_coordinates((5, 5), 3, CPU).unflatten(0, (9, 9))
    assert larger[0, 4].tolist() == pytest.approx([-math.log2(17) / 3, 0])  # twice as far out as it was trained
    assert log_coordinates((1, 1), 0, CPU).tolist() == [[0, 0]]


def test_biases_of_the_mlp_lie_between_0_and_16():
    positions = LogSpacedBias(0, 4)
    with torch.no_grad():
        positions.down.weight.mul_(50)
    bias = positions((4, 6))
    assert bias.shape == (4, 24, 24)
    assert 0 <= bias.min() < bias.max() <= 16
