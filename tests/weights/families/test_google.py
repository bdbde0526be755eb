"""Google's .npz files, written here from random timm models, against those models and timm's own reader of .npz."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.ndimage
import torch
from timm.models import VisionTransformer
from torch import Tensor

from benchmarks.peers.google_arrays import FIRST, LATER, arrays_of
from vitrail.errors import VitrailError
from vitrail.model.positions import resample
from vitrail.weights.load import load
from vitrail.weights.source import Source

SMALL = {"img_size": 64, "patch_size": 16, "embed_dim": 48, "depth": 3, "num_heads": 3, "num_classes": 10}
WIDTHS = {
    "small": SMALL,
    "S": {**SMALL, "embed_dim": 384, "num_heads": 6, "depth": 2},
    "B": {**SMALL, "embed_dim": 768, "num_heads": 12, "depth": 2},
}
Arrays = dict[str, np.ndarray]
SIGLIP = {"class_token": False, "global_pool": "map", "num_classes": 0}


@pytest.fixture
def made(randomise: Callable) -> Callable[..., VisionTransformer]:
    def make(**arguments: Any) -> VisionTransformer:
        return randomise(VisionTransformer(**{**SMALL, "act_layer": "gelu_tanh", "weight_init": "skip", **arguments}))

    return make


def saved(path: Path, arrays: Arrays, prefix: str = "") -> Path:
    np.savez(path, **{prefix + name: array for name, array in arrays.items()})
    return path


def images_of(*size: int) -> Tensor:
    return torch.randn(2, 3, *size, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("prefix", ["", "opt/target/"])
@pytest.mark.parametrize("width", WIDTHS)
def test_parity(width: str, prefix: str, made: Callable, outputs: Callable, compare: Callable, tmp_path: Path) -> None:
    theirs = made(**WIDTHS[width])
    path = saved(tmp_path / "vit.npz", arrays_of(theirs), prefix)
    checkpoint = load(path)
    images = images_of(64, 64)
    compare(checkpoint.model, images, *outputs(theirs, theirs.blocks, images))
    assert checkpoint.provenance["family"] == "google"
    assert checkpoint.provenance["heads"] == "the shape of the query kernel, (D, heads, d)"


def test_parity_of_a_whole_model(made: Callable, outputs: Callable, compare: Callable, tmp_path: Path) -> None:
    theirs = made(img_size=224, embed_dim=384, depth=12, num_heads=6, num_classes=1000)
    ours = load(saved(tmp_path / "S_16.npz", arrays_of(theirs))).model
    images = images_of(224, 224)[:1]
    compare(ours, images, *outputs(theirs, theirs.blocks, images))


@pytest.mark.parametrize(
    ("arguments", "style", "stacked", "prefix"),
    [
        ({}, FIRST, False, ""),
        ({}, FIRST, False, "opt/target/"),
        ({"no_embed_class": True}, LATER, False, "params/"),
        ({"no_embed_class": True}, LATER, True, "params/"),
        ({"class_token": False, "global_pool": "avg", "fc_norm": False}, LATER, True, "params/"),
        (SIGLIP, LATER, True, "params/img/"),
        (SIGLIP, LATER, False, "params/img/"),
    ],
)
def test_timm_reads_the_same_file_alike(
    arguments: dict,
    style: dict,
    stacked: bool,
    prefix: str,
    made: Callable,
    compare: Callable,
    outputs: Callable,
    tmp_path,
) -> None:
    """timm computes GELU exactly where Google takes tanh: each as the other, on the caller's word."""
    path = saved(tmp_path / "vit.npz", arrays_of(made(**arguments), style, stacked), prefix)
    images = images_of(64, 64)
    for activation, settings in [("gelu_tanh", {}), ("gelu", {"activation": "gelu"})]:
        theirs = VisionTransformer(**{**SMALL, **arguments, "act_layer": activation}).eval()
        theirs.load_pretrained(str(path))
        compare(load(path, **settings).model, images, *outputs(theirs, theirs.blocks, images))


# ---- positions at another size


@pytest.mark.parametrize("new", [(6, 6), (3, 3), (4, 7), (2, 9), (24, 24), (1, 4)])
def test_resampling_is_scipys_zoom_of_order_1(new: tuple[int, int]) -> None:
    table = torch.randn(16, 8, generator=torch.Generator().manual_seed(0))
    zoomed = scipy.ndimage.zoom(table.reshape(4, 4, 8).numpy(), (new[0] / 4, new[1] / 4, 1), order=1)
    assert zoomed.shape == (*new, 8)
    ours = resample(table, (4, 4), new, "linear")
    assert (ours - torch.from_numpy(zoomed).reshape(-1, 8)).abs().max() < 1e-5


@pytest.mark.parametrize("size", [(96, 96), (64, 112), (48, 48)])
def test_parity_at_another_size(
    size: tuple[int, int], made: Callable, outputs: Callable, compare: Callable, tmp_path
) -> None:
    """Against timm with the positions that Google's code would give it."""
    theirs = made(img_size=64)
    path = saved(tmp_path / "vit.npz", arrays_of(theirs))
    grid = size[0] // 16, size[1] // 16
    table = theirs.pos_embed.detach()[0]
    zoomed = scipy.ndimage.zoom(table[1:].reshape(4, 4, -1).numpy(), (grid[0] / 4, grid[1] / 4, 1), order=1)
    larger = VisionTransformer(**{**SMALL, "act_layer": "gelu_tanh", "img_size": size}).eval()
    positions = torch.cat([table[:1], torch.from_numpy(zoomed).flatten(0, 1)])
    larger.load_state_dict({**theirs.state_dict(), "pos_embed": positions[None]})
    images = images_of(*size)
    expected = outputs(larger, larger.blocks, images)
    compare(load(path).model, images, *expected)  # resampled as it runs
    compare(load(path, image_size=size).model, images, *expected)  # resampled for good


# ---- what comes with it


def test_what_comes_with_it(made: Callable, tmp_path: Path) -> None:
    checkpoint = load(saved(tmp_path / "vit.npz", arrays_of(made())))
    config, preprocessing = checkpoint.config, checkpoint.preprocessing
    assert (config.norm_eps, config.resample, config.heads, config.cls_position) == (1e-6, "linear", 3, "learned")
    assert config.activation == "gelu_tanh"  # flax's gelu, which Google's code calls without arguments
    assert (preprocessing.mean, preprocessing.std) == ((0.5,) * 3, (0.5,) * 3)
    assert (preprocessing.resize, preprocessing.interpolation, preprocessing.size) == ("squash", "bilinear", (64, 64))
    assert checkpoint.task == "classify"
    assert any("tanh" in note for note in checkpoint.notes)


def test_pre_logits_are_the_hidden_layer_of_the_head(made: Callable, tmp_path: Path) -> None:
    theirs = made()
    arrays = arrays_of(theirs)
    kernel, bias = torch.randn(48, 20) / 7, torch.randn(20)
    head = torch.randn(20, 10) / 5
    arrays |= {"pre_logits/kernel": kernel.numpy(), "pre_logits/bias": bias.numpy(), "head/kernel": head.numpy()}
    checkpoint = load(saved(tmp_path / "vit.npz", arrays))
    assert (checkpoint.config.head, checkpoint.config.head_width) == ("mlp", 20)
    images = images_of(64, 64)
    with torch.no_grad():
        features = theirs.forward_head(theirs.forward_features(images), pre_logits=True)
        expected = torch.tanh(features @ kernel + bias) @ head + theirs.head.bias
        assert (checkpoint.model(images) - expected).abs().max() <= 1e-4


def test_other_towers_and_optimisers_are_left_out(made: Callable, tmp_path: Path) -> None:
    arrays = {f"params/img/{name}": array for name, array in arrays_of(made(**SIGLIP), LATER, stacked=True).items()}
    arrays |= {"params/txt/Embed_0/embedding": np.ones((5, 48)), "params/t": np.ones(1), "opt/0/count": np.ones(1)}
    checkpoint = load(saved(tmp_path / "siglip.npz", arrays))
    assert (checkpoint.config.pool, checkpoint.config.cls_token, checkpoint.task) == ("attention", False, "embed")


def test_bfloat16_as_jax_saves_it(made: Callable, tmp_path: Path) -> None:
    arrays = arrays_of(made())
    halves = {n: torch.from_numpy(a).bfloat16().view(torch.int16).numpy().view("V2") for n, a in arrays.items()}
    ours = load(saved(tmp_path / "half.npz", halves)).model
    assert torch.equal(ours.head.out.bias, torch.from_numpy(arrays["head/bias"]).bfloat16().float())


def test_heads_that_nobody_published_are_known(made: Callable, tmp_path: Path) -> None:
    assert load(saved(tmp_path / "vit.npz", arrays_of(made(num_heads=8)))).config.heads == 8


# ---- what is refused


def without(name: str) -> Callable[[Arrays], Arrays]:
    return lambda arrays: {key: array for key, array in arrays.items() if key != name}


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda a: a | {"conv_root/kernel": np.ones((7, 7, 3, 64))}, "hybrid, a ResNet (conv_root) before the ViT"),
        (without(FIRST["positions"]), "stores no positions"),
        (
            without("Transformer/encoderblock_1/LayerNorm_0/bias"),
            "the weights lack Transformer/encoderblock_1/LayerNorm_0",
        ),
        (without("head/bias"), "the weights lack head.bias"),
        (lambda a: a | {"unknown/kernel": np.ones((2, 2))}, "1 tensors have no place"),
        (lambda a: a | {"embedding/kernel": np.ones((768, 48))}, "embedding/kernel has shape (768, 48)"),
        (lambda a: a | {"head/kernel": np.ones(3)}, "head/kernel has shape (3,)"),
        (lambda a: a | {"head/kernel": np.ones((7, 10))}, "head.weight has shape (10, 7)"),
        (lambda a: a | {"Transformer/encoderblock_7/x": np.ones(1)}, "blocks under Transformer/encoderblock_*"),
        (lambda a: a | {FIRST["positions"]: np.ones((1, 18, 48))}, "18 positions, whose patches form no square"),
    ],
)
def test_refused_in_one_sentence(change: Callable, words: str, made: Callable, tmp_path: Path) -> None:
    path = saved(tmp_path / "vit.npz", change(arrays_of(made())))
    with pytest.raises(VitrailError, match=re.escape(words)) as caught:
        load(path)
    assert str(path) in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.parametrize("stacked", [False, True])
def test_damaged_in_any_way(stacked: bool, damaged: Callable) -> None:
    model = VisionTransformer(img_size=32, patch_size=8, embed_dim=24, depth=2, num_heads=3, num_classes=5)
    arrays = {name: torch.from_numpy(array) for name, array in arrays_of(model, FIRST, stacked).items()}
    damaged(Source("it", "vit.npz", arrays))
