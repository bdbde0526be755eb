"""Where a loss compares logits with a mask."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from vitrail.tasks.shared.aligning import aligned, near_centres


def test_at_the_same_resolution_every_pixel_is_compared():
    logits, mask = torch.randn(2, 3, 9, 7), torch.randint(0, 3, (2, 9, 7))
    same, truth = aligned(logits, mask)
    assert torch.equal(same, logits)
    assert torch.equal(truth, mask)


def test_logits_at_half_the_resolution_of_a_large_mask_stay_as_they_are():
    logits, mask = torch.randn(1, 3, 150, 200), torch.arange(300 * 400).view(1, 300, 400)
    same, truth = aligned(logits, mask)
    assert torch.equal(same, logits)
    assert truth[0, :5, 0].tolist() == [0, 3 * 400, 4 * 400, 7 * 400, 8 * 400]
    assert truth[0, 0, -4:].tolist() == [392, 395, 396, 399]


@pytest.mark.parametrize("size", [(1, 1), (20, 30), (140, 150)], ids=str)
def test_coarser_logits_are_enlarged_to_half_of_a_large_mask(size):
    logits, mask = torch.randn(1, 3, *size), torch.randint(0, 3, (1, 299, 400))
    large, truth = aligned(logits, mask)
    torch.testing.assert_close(large, F.interpolate(logits, (150, 200), mode="bilinear", align_corners=False))
    assert truth.shape == (1, 150, 200)


@pytest.mark.parametrize("size", [(1, 1), (24, 32)], ids=str)
def test_small_masks_are_compared_pixel_by_pixel(size):
    logits, mask = torch.randn(1, 3, *size), torch.randint(0, 3, (1, 48, 64))
    large, truth = aligned(logits, mask)
    torch.testing.assert_close(large, F.interpolate(logits, (48, 64), mode="bilinear", align_corners=False))
    assert torch.equal(truth, mask)


def test_logits_finer_than_the_mask_meet_its_nearest_pixels():
    _, truth = aligned(torch.randn(1, 2, 6, 6), torch.tensor([[[0, 1], [2, 3]]]))
    assert truth.shape == (1, 6, 6)
    assert [truth[0, y, x].item() for y in (0, 5) for x in (0, 5)] == [0, 1, 2, 3]


@pytest.mark.parametrize(("cells", "pixels"), [(4, 8), (176, 352), (10, 19), (12, 36), (7, 7), (100, 150), (1, 1)])
def test_pixels_lie_in_their_cells_and_on_average_in_the_middle(cells, pixels):
    chosen = near_centres(cells, pixels).double() + 0.5
    centres = (torch.arange(cells, dtype=torch.float64) + 0.5) * pixels / cells
    assert (chosen - centres).abs().max() <= 1
    assert (chosen - centres).abs().max() <= pixels / cells / 2 + 0.5
    assert abs((chosen - centres).mean().item()) < 0.1
