"""One affine map of colours: what it changes and what it leaves alone."""

from __future__ import annotations

import colorsys

import pytest
import torch

from vitrail.pretraining.colour_jitter import DRAWS, change_colours, colour_matrices, jitter

MIDDLE = torch.full((1, DRAWS), 0.5)  # of every range: nothing changes; grey, blur and solarize are not drawn


def test_the_middle_of_every_range_changes_nothing():
    images = torch.rand(1, 3, 4, 4)
    torch.testing.assert_close(change_colours(images, MIDDLE, 1.0, blur=0.4, solarize=0.4), images, atol=1e-3, rtol=0)


def test_no_strength_changes_nothing_at_all():
    images = torch.rand(2, 3, 4, 4)
    assert torch.equal(change_colours(images, torch.rand(2, DRAWS), 0.0), images)


def test_hue_turns_colours_and_keeps_grey():
    grey, red = torch.full((3,), 0.4), torch.tensor([0.8, 0.2, 0.2])
    [matrix] = colour_matrices(torch.ones(1), torch.tensor([1 / 3]))
    torch.testing.assert_close(matrix @ grey, grey, atol=1e-2, rtol=0)
    hue = colorsys.rgb_to_hsv(*(matrix @ red).clamp(0, 1).tolist())[0]
    assert min(abs(hue - 1 / 3), abs(hue - 2 / 3)) < 0.08  # green or blue, by the direction of the turn


def test_no_saturation_is_luma():
    [matrix] = colour_matrices(torch.zeros(1), torch.zeros(1))
    torch.testing.assert_close(matrix @ torch.tensor([1.0, 0.0, 0.0]), torch.full((3,), 0.299))


def test_brightness_and_contrast_by_hand():
    """The highest draws: brightness and contrast 1.4. Mean 0.25: (x 1.4 - 0.35) 1.4 + 0.35 of 0.2 and 0.3."""
    draws = MIDDLE.clone()
    draws[0, 1:3] = 1.0
    images = torch.tensor([0.2, 0.3]).expand(1, 1, 1, 2)
    expected = torch.tensor([(0.28 - 0.35) * 1.4 + 0.35, (0.42 - 0.35) * 1.4 + 0.35])
    torch.testing.assert_close(jitter(images, draws, 1.0)[0, 0, 0], expected)


def test_solarize_inverts_what_is_bright():
    draws = MIDDLE.clone()
    draws[0, 8] = 0.0
    images = torch.tensor([0.2, 0.9]).expand(1, 3, 1, 2)
    changed = change_colours(images, draws, 0.0, solarize=0.2)[0, 0, 0]
    torch.testing.assert_close(changed, torch.tensor([0.2, 0.1]))


@pytest.mark.parametrize(("side", "same"), [(32, True), (64, False)])
def test_only_large_pictures_are_blurred(side, same):
    draws = MIDDLE.clone()
    draws[0, 6:8] = torch.tensor([0.0, 1.0])
    images = torch.rand(1, 3, side, side)
    changed = change_colours(images, draws, 0.0, blur=0.5)
    assert torch.equal(changed, images) is same
    assert (changed.std() < images.std()) is not same or same


def test_images_of_other_channels_keep_their_number():
    for channels in (1, 5):
        assert jitter(torch.rand(3, channels, 4, 4), torch.rand(3, DRAWS), 1.0).shape == (3, channels, 4, 4)
