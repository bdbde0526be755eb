"""Where a loss compares logits with a mask."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from vitrail.tasks.aligning import aligned, near_centres


def test_at_the_same_resolution_every_pixel_is_aligned():
    logits, mask = torch.randn(2, 3, 9, 7), torch.randint(0, 3, (2, 9, 7))
    same, truth = aligned(logits, mask)
    assert torch.equal(same, logits)
    assert torch.equal(truth, mask)


def test_logits_at_half_the_resolution_stay_as_they_are():
    logits, mask = torch.randn(2, 3, 4, 6), torch.arange(2 * 8 * 12).view(2, 8, 12)
    same, truth = aligned(logits, mask)
    assert torch.equal(same, logits)
    assert truth[0, :, 0].tolist() == [0, 3 * 12, 4 * 12, 7 * 12]
    assert truth[0, 0].tolist() == [0, 3, 4, 7, 8, 11]


@pytest.mark.parametrize("size", [(1, 1), (2, 3), (5, 6)], ids=str)
def test_coarser_logits_are_enlarged_to_half(size):
    logits, mask = torch.randn(1, 3, *size), torch.randint(0, 3, (1, 19, 24))
    large, truth = aligned(logits, mask)
    torch.testing.assert_close(large, F.interpolate(logits, (10, 12), mode="bilinear", align_corners=False))
    assert truth.shape == (1, 10, 12)


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
