"""Hidden patches, counted by hand."""

from __future__ import annotations

import torch
from torch import nn

from vitrail.explanation.methods.occlusion import occlusion, outputs_hidden, windows_of
from vitrail.explanation.target_score import blank, target_score
from vitrail.model.config import ViTConfig


class Sum(nn.Module):
    """A stand-in for a model: its only output is the sum of all pixels, so every patch's part in it is known."""

    config = ViTConfig(image_size=16, patch_size=4, classes=1, channels=1, width=8, heads=1, depth=1)

    def forward(self, images):
        return images.sum((1, 2, 3))[:, None]


def test_windows_cover_every_patch_and_move_by_half():
    windows = windows_of((4, 6), 2)
    assert windows.shape == (15, 4, 6)
    assert windows.any(0).all()
    assert (windows.sum((1, 2)) == 4).all()
    assert windows_of((3, 3), 5).shape == (1, 3, 3)
    assert windows_of((9, 9), 4).any(0).all()


def test_occlusion_is_the_fall_of_the_score():
    images = torch.rand(2, 1, 8, 12)
    model = Sum()
    score = target_score(model, images, "multilabel")
    found = occlusion(model, images, score, window=1, batch=2)
    extra = images - blank(images)
    expected = extra.reshape(2, 2, 4, 3, 4).sum((2, 4))
    assert found.shape == (2, 2, 3)
    assert (found - expected).abs().max() <= 1e-4


def test_hidden_patches_have_the_mean_colour():
    seen = []

    class Keep(Sum):
        def forward(self, images):
            seen.append(images)
            return super().forward(images)

    image = torch.rand(1, 8, 8)
    masks = torch.zeros(3, 2, 2, dtype=torch.bool)
    masks[1, 0, 1] = masks[2] = True
    assert outputs_hidden(Keep(), image, masks, batch=2).shape == (3, 1)
    pictures = torch.cat(seen)
    assert torch.equal(pictures[0], image)
    assert torch.allclose(pictures[1, :, :4, 4:], image.mean())
    assert torch.equal(pictures[1, :, 4:], image[:, 4:])
    assert torch.allclose(pictures[2], image.mean())
