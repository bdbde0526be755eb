"""MAE's patches and loss against transformers; what it sees and what it does not."""

from __future__ import annotations

import pytest
import torch
from transformers import ViTMAEConfig, ViTMAEForPreTraining

from vitrail.model.presets import preset
from vitrail.model.vit import ViT
from vitrail.pretraining.methods.mae import MaskedAutoencoder, draw_mask, patches_of, pixel_loss
from vitrail.pretraining.methods.method import Moment


@pytest.fixture(scope="module")
def theirs() -> ViTMAEForPreTraining:
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    decoder = {"decoder_hidden_size": 16, "decoder_num_hidden_layers": 1, "decoder_num_attention_heads": 2}
    config = ViTMAEConfig(image_size=16, patch_size=4, norm_pix_loss=True, **sizes, **decoder)
    return ViTMAEForPreTraining(config)


def test_patches_are_those_of_transformers(theirs):
    images = torch.randn(2, 3, 16, 16)
    assert torch.equal(patches_of(images, (4, 4)), theirs.patchify(images))


def test_loss_is_that_of_transformers(theirs):
    torch.manual_seed(0)
    images, painted = torch.randn(2, 3, 16, 16), torch.randn(2, 16, 48)
    hidden = torch.tensor([0, 3, 5, 11, 15])
    mask = torch.zeros(2, 16)
    mask[:, hidden] = 1
    ours = pixel_loss(painted[:, hidden], patches_of(images, (4, 4))[:, hidden])
    torch.testing.assert_close(ours, theirs.forward_loss(images, painted, mask), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(("mask", "shown"), [(0.75, 4), (0.99, 1), (0.01, 15)])
def test_every_patch_is_either_shown_or_hidden(mask, shown):
    one, other = draw_mask((4, 4), mask, 7, torch.device("cpu"))
    assert len(one) == shown and sorted([*one.tolist(), *other.tolist()]) == list(range(16))


@pytest.mark.parametrize("stem", ["linear", "conv"])
def test_what_is_hidden_is_not_seen(stem):
    """Other pixels in the hidden patches give the same tokens, also through the kernels of a conv stem."""
    torch.manual_seed(0)
    method = MaskedAutoencoder(ViT(preset("mu/4", image_size=16, stem=stem, classes=0))).eval()
    shown, hidden = draw_mask((4, 4), 0.75, 3, torch.device("cpu"))
    images = torch.randn(2, 3, 16, 16)
    cut = images.clone().unfold(2, 4, 4).unfold(3, 4, 4)  # (B, C, 4, 4, P, P), a view
    for number in hidden.tolist():
        cut[:, :, number // 4, number % 4] = 9.0
    other = cut.permute(0, 1, 2, 4, 3, 5).reshape(2, 3, 16, 16)
    assert not torch.equal(images, other)
    with torch.no_grad():
        tokens = [method.encode(one, shown, (4, 4)) for one in (images, other)]
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
