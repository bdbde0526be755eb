"""The masked autoencoder: its loss is transformers', hidden pixels do not reach the encoder, every patch is decoded."""

from __future__ import annotations

import pytest
import torch
from transformers import ViTMAEConfig, ViTMAEForPreTraining

from vitrail.model.encoder import Capture
from vitrail.model.heads.mae_decoder import MAEDecoder, hide_patches, mae_loss
from vitrail.model.presets import preset
from vitrail.model.vit import ViT

SIDE, PATCH = 16, (4, 4)
HIDDEN, KEEP = torch.tensor([0, 2, 3, 5, 6, 7, 9, 10, 12, 13, 14, 15]), torch.tensor([1, 4, 8, 11])


@pytest.fixture
def images() -> torch.Tensor:
    return torch.randn(3, 3, SIDE, SIDE, generator=torch.Generator().manual_seed(0))


def test_the_loss_is_that_of_transformers(images: torch.Tensor) -> None:
    sizes = {"hidden_size": 8, "num_attention_heads": 2, "num_hidden_layers": 1, "intermediate_size": 8}
    decoder = {"decoder_hidden_size": 8, "decoder_num_attention_heads": 2, "decoder_num_hidden_layers": 1}
    config = ViTMAEConfig(image_size=SIDE, patch_size=4, norm_pix_loss=True, **sizes, **decoder)
    noise = torch.zeros(3, 16)
    noise[:, HIDDEN] = 1.0  # theirs keep the patches with the least
    with torch.no_grad():
        theirs = ViTMAEForPreTraining(config).eval()(images, noise=noise)
    assert theirs.mask[0].nonzero().flatten().tolist() == HIDDEN.tolist()
    assert mae_loss(theirs.logits, images, HIDDEN, PATCH).item() == pytest.approx(theirs.loss.item(), rel=1e-6)


def test_a_patch_of_one_pixel_keeps_its_colour() -> None:
    images = torch.randn(2, 1, 4, 4)
    assert mae_loss(images.flatten(2).transpose(1, 2), images, KEEP, (1, 1)).item() == 0.0


@pytest.mark.parametrize(("stem", "pool"), [("linear", "cls"), ("conv", "mean")])
def test_what_is_hidden_does_not_reach_the_encoder(images: torch.Tensor, stem: str, pool: str) -> None:
    torch.manual_seed(0)
    model = ViT(preset("mu/4", image_size=SIDE, stem=stem, pool=pool)).eval()
    decoder = MAEDecoder(model.config, width=32)
    others = images.clone()
    others.view(3, 3, 4, 4, 4, 4)[:, :, 0, :, 0] = 9.0  # the first patch, which is hidden

    def predict(pictures: torch.Tensor) -> torch.Tensor:
        capture = Capture(all_tokens=True)
        model(hide_patches(pictures, HIDDEN, PATCH), keep=KEEP, capture=capture)
        tokens = capture.normed[:, model.prefix :]
        assert tokens.shape == (3, len(KEEP), model.config.width)
        return decoder(tokens, KEEP)

    predicted = predict(images)
    assert predicted.shape == (3, 16, 48)
    assert torch.equal(predict(others), predicted)
    others[:, :, 0, 4] += 1  # of the second patch, which is seen
    assert not torch.equal(predict(others), predicted)
    mae_loss(predicted, images, HIDDEN, PATCH).backward()
    for name, parameter in [*decoder.named_parameters(), *model.blocks.named_parameters()]:
        assert parameter.grad is not None and parameter.grad.any(), name


def test_it_learns(images: torch.Tensor) -> None:
    """Tokens go to their own places: from tokens that say where they are, the pixels of those places can be learnt."""
    torch.manual_seed(0)
    decoder = MAEDecoder(preset("mu/4", image_size=SIDE), width=32)
    tokens = torch.randn(3, len(KEEP), decoder.embed.in_features)
    optimizer = torch.optim.Adam(decoder.parameters(), 1e-2)
    losses = []
    for _ in range(60):
        optimizer.zero_grad()
        losses.append(mae_loss(decoder(tokens, KEEP), images, HIDDEN, PATCH))
        losses[-1].backward()
        optimizer.step()
    assert losses[-1] < 0.5 * losses[0]
