"""What MAE sees, what it does not, and that it learns. The decoder and the loss have tests of their own."""

from __future__ import annotations

import pytest
import torch

from vitrail.data.loading.rng import step_seed
from vitrail.model.heads.mae_decoder import hide_patches
from vitrail.model.presets import preset
from vitrail.model.vit import ViT
from vitrail.pretraining.methods.mae import MaskedAutoencoder
from vitrail.pretraining.methods.method import Moment
from vitrail.training.auxiliary.masked_patches import draw_hidden


@pytest.mark.parametrize("stem", ["linear", "conv"])
def test_what_is_hidden_is_not_seen(stem):
    """Other pixels in the hidden patches give the same tokens, also through the kernels of a conv stem."""
    torch.manual_seed(0)
    method = MaskedAutoencoder(ViT(preset("mu/4", image_size=16, stem=stem, classes=0))).eval()
    tokens = []
    method.decoder.register_forward_hook(lambda module, inputs, output: tokens.append(inputs[0]))
    hidden = draw_hidden(16, 0.75, step_seed(0, 3), torch.device("cpu"))["hidden"]
    images = torch.randn(2, 3, 16, 16)
    kept = hide_patches(torch.ones(1, 1, 16, 16), hidden, (4, 4))
    other = images * kept + 9 * (1 - kept)
    assert not torch.equal(images, other)
    with torch.no_grad():
        for pictures in (images, other):
            method([pictures], None, Moment(3, 60, 0))
    torch.testing.assert_close(*tokens)


def test_it_learns_to_paint():
    torch.manual_seed(0)
    method = MaskedAutoencoder(ViT(preset("mu/4", image_size=16, classes=0))).train()
    images = torch.linspace(-1, 1, 16).expand(4, 3, 16, 16) + 0.1 * torch.randn(4, 3, 1, 1)
    optimizer = torch.optim.AdamW(method.parameters(), lr=3e-3)
    losses = []
    for step in range(60):
        loss = method([images], None, Moment(step, 60, 0))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.5 * losses[0]
