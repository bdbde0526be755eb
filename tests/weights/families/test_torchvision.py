"""torchvision's ViTs: the same answers, under the names of now and of then."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

from tests.weights.families.conftest import randomised
from vitrail.weights.load import load
from vitrail.weights.preprocessing import IMAGENET


def made(width: int = 64, heads: int = 4, patch: int = 16, size: int = 64) -> nn.Module:
    from torchvision.models import VisionTransformer

    return randomised(VisionTransformer(size, patch, 3, heads, width, 2 * width, num_classes=5))


def images_of(size: int) -> torch.Tensor:
    return torch.randn(2, 3, size, size, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize(("width", "heads", "patch"), [(64, 4, 16), (768, 12, 16), (1024, 16, 32), (1280, 16, 14)])
def test_answers_are_theirs(width: int, heads: int, patch: int, tmp_path: Path) -> None:
    theirs = made(width, heads, patch, 4 * patch)
    torch.save(theirs.state_dict(), tmp_path / "vit.pth")
    checkpoint = load(tmp_path / "vit.pth", **({"heads": heads} if width == 64 else {}))
    assert checkpoint.provenance["family"] == "torchvision"
    assert (checkpoint.config.heads, checkpoint.config.classes, checkpoint.task) == (heads, 5, "classify")
    with torch.no_grad():
        expected = theirs(images_of(4 * patch))
        assert expected.std() > 0.05
        assert (checkpoint.model(images_of(4 * patch)) - expected).abs().max() <= 1e-4


@pytest.mark.parametrize("prefix", ["", "module.", "model.net."])
def test_first_names_and_prefixes(prefix: str, tmp_path: Path) -> None:
    """Files of torchvision 0.12 have linear_1 and linear_2."""
    theirs, state = made(), {}
    for name, tensor in theirs.state_dict().items():
        state[prefix + name.replace("mlp.0.", "mlp.linear_1.").replace("mlp.3.", "mlp.linear_2.")] = tensor
    torch.save(state, tmp_path / "vit.pth")
    with torch.no_grad():
        found = load(tmp_path / "vit.pth", heads=4).model(images_of(64))
        assert (found - theirs(images_of(64))).abs().max() <= 1e-4


def test_preprocessing_is_torchvisions_and_noted(tmp_path: Path) -> None:
    for size, before, interpolation in ((224, 256, "bilinear"), (384, 384, "bicubic")):
        torch.save(made(size=size).state_dict(), tmp_path / "vit.pth")
        checkpoint = load(tmp_path / "vit.pth", heads=4)
        found = checkpoint.preprocessing
        assert (found.size, found.before_crop) == ((size, size), (before, before))
        assert (found.interpolation, found.crop_offset, (found.mean, found.std)) == (interpolation, "round", IMAGENET)
        assert any("does not tell how images are prepared" in note for note in checkpoint.notes)
