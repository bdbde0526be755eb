"""60 % of the mass, and the side of the first component that is the object."""

from __future__ import annotations

import pytest
import torch

from vitrail.errors import VitrailError
from vitrail.explanation.methods.foreground import foreground, mass_masks, principal_components


def test_the_fewest_patches_that_hold_the_share():
    maps = torch.tensor([[[0.5, 0.15], [0.25, 0.1]], [[0.25, 0.25], [0.25, 0.25]]])
    assert mass_masks(maps).tolist() == [[[True, False], [True, False]], [[True, True], [True, False]]]
    assert mass_masks(maps, 0.5).sum((1, 2)).tolist() == [1, 2]
    assert mass_masks(maps, 1.0).all()
    with pytest.raises(VitrailError, match="share is 0"):
        mass_masks(maps, 0)


@pytest.mark.parametrize("share", [0.3, 0.6, 0.9])
def test_masks_are_those_of_dinos_own_code(share):
    """Its visualize_attention.py sorts upwards and keeps what lies above 1 - share of the cumulated mass."""
    maps = torch.rand(2, 6, 5, 7, generator=torch.Generator().manual_seed(0))
    flat = maps.flatten(2).double()
    values, order = torch.sort(flat)
    kept = torch.cumsum(values / values.sum(-1, keepdim=True), -1) > 1 - share
    theirs = torch.zeros_like(kept).scatter(-1, order, kept).view(2, 6, 5, 7)
    assert torch.equal(mass_masks(maps, share), theirs)


@pytest.mark.parametrize("sign", [1, -1])
def test_the_foreground_is_the_part_inside(sign):
    generator = torch.Generator().manual_seed(0)
    inside = torch.zeros(6, 8, dtype=torch.bool)
    inside[2:4, 3:6] = True
    direction = torch.randn(16, generator=generator)
    tokens = sign * 3 * inside.flatten()[:, None] * direction + 0.1 * torch.randn(48, 16, generator=generator)
    found = foreground(torch.stack([tokens, -tokens]), (6, 8))
    assert torch.equal(found.mask[0], inside)
    assert torch.equal(found.mask[1], inside)
    assert found.components.shape == (2, 6, 8, 3)
    assert found.components.min() == 0
    assert found.components.max() == 1


def test_components_are_uncorrelated_and_largest_first():
    x = torch.randn(50, 8, generator=torch.Generator().manual_seed(0)) * torch.arange(1, 9)
    scores = principal_components(x)
    covariance = scores.T @ scores
    assert (covariance - covariance.diag().diag()).abs().max() <= 1e-2
    assert covariance.diag().tolist() == sorted(covariance.diag().tolist(), reverse=True)
    assert principal_components(x[:2]).shape == (2, 3)  # fewer tokens than components
