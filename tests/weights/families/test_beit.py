"""BEiT's relative positions: against transformers and timm in both directions, at other sizes, and looked into."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import timm
import torch
from torch import Tensor
from transformers import AutoModel, AutoModelForImageClassification, BeitConfig, BeitForImageClassification, BeitModel

from benchmarks.peers.families import randomise_all, timm_peer
from vitrail.commands.convert import convert
from vitrail.errors import VitrailError
from vitrail.explanation.methods.attention_maps import attention_of_all
from vitrail.model.config import ViTConfig
from vitrail.model.vit import ViT
from vitrail.weights.checkpoint import Checkpoint
from vitrail.weights.families import recognise
from vitrail.weights.load import load
from vitrail.weights.source import Source

SMALL = {
    "hidden_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 3,
    "intermediate_size": 96,
    "image_size": 64,
    "patch_size": 16,
    "num_labels": 5,
    "use_relative_position_bias": True,
    "layer_norm_eps": 1e-6,
}
IMAGES = torch.randn(2, 3, 48, 80, generator=torch.Generator().manual_seed(1))
NATIVE = torch.randn(2, 3, 64, 64, generator=torch.Generator().manual_seed(1))


def made(model_class: Any = BeitForImageClassification, **changes: Any) -> Any:
    return randomise_all(model_class(BeitConfig(**{**SMALL, **changes})))


def saved(folder: Path, model_class: Any = BeitForImageClassification, **changes: Any) -> Any:
    model = made(model_class, **changes)
    model.save_pretrained(folder)
    return model


def answer_of(model: Any, images: Tensor = IMAGES) -> Tensor:
    with torch.no_grad():
        output = model.eval()(images)
    return output.logits if "logits" in output else output.pooler_output


def difference(checkpoint: Checkpoint, model: Any, images: Tensor = IMAGES) -> float:
    with torch.no_grad():
        return float((checkpoint.model(images) - answer_of(model, images)).abs().max())


# ---- in

VARIANTS = [
    {"use_mean_pooling": False},
    {"use_relative_position_bias": False, "use_shared_relative_position_bias": True},
    {"use_shared_relative_position_bias": True},
    {"use_mask_token": True},
    {"layer_scale_init_value": 0.0},
]


@pytest.mark.parametrize("changes", VARIANTS, ids=str)
@pytest.mark.parametrize("model_class", [BeitForImageClassification, BeitModel])
def test_variants_of_transformers(changes: dict[str, Any], model_class: Any, tmp_path: Path) -> None:
    theirs = saved(tmp_path, model_class, **changes)
    checkpoint = load(tmp_path)
    assert checkpoint.provenance["family"] == "transformers-beit"
    assert difference(checkpoint, theirs, NATIVE) <= 1e-4
    assert difference(checkpoint, theirs) <= 1e-4


def test_learned_positions_beside_none(tmp_path: Path) -> None:
    theirs = saved(tmp_path, use_relative_position_bias=False, use_absolute_position_embeddings=True)
    assert difference(load(tmp_path), theirs) <= 1e-4


def test_names_in_memory_are_read_too() -> None:
    for changes in VARIANTS:
        theirs = made(**changes)
        config = json.loads(json.dumps(theirs.config.to_dict(), default=str))
        source = Source("it", "model.safetensors", theirs.state_dict(), config=config)
        assert any(name.startswith("beit.layers.0.") for name in source.tensors)
        assert recognise(source).convert(source, {}).config.depth == 2


def test_older_files_hold_what_is_computed(tmp_path: Path) -> None:
    """Microsoft's and timm's old files have relative_position_index, and wrap the weights in `model`."""
    built = timm_peer("BEiT v2", "beitv2_base_patch16_224", 16, 224).build("small", tmp_path / "timm")
    model = timm.create_model(f"local-dir:{tmp_path / 'timm'}", pretrained=True)
    state = {**model.state_dict(), "blocks.0.attn.relative_position_index": torch.zeros(17, 17, dtype=torch.long)}
    torch.save({"model": state}, tmp_path / "beitv2.pth")
    checkpoint = load(tmp_path / "beitv2.pth", heads=3)
    assert checkpoint.provenance["family"] == "timm"
    with torch.no_grad():
        assert (checkpoint.model(NATIVE) - built.run(NATIVE)[0]).abs().max() <= 1e-4


@pytest.mark.parametrize(
    ("stored", "size", "resize", "interpolation"),
    [
        (None, (64, 64), "squash", "bicubic"),
        ({"image_processor_type": "BeitImageProcessor"}, (224, 224), "squash", "bicubic"),
        (
            {"feature_extractor_type": "BeitFeatureExtractor", "size": 256, "do_center_crop": True, "crop_size": 224},
            (224, 224),
            "squash",
            "bicubic",
        ),
    ],
)
def test_preprocessing(
    stored: dict[str, Any] | None, size: tuple[int, int], resize: str, interpolation: str, tmp_path: Path
) -> None:
    saved(tmp_path)
    if stored is not None:
        (tmp_path / "preprocessor_config.json").write_text(json.dumps(stored))
    found = load(tmp_path).preprocessing
    assert (found.size, found.resize, found.interpolation) == (size, resize, interpolation)
    assert found.mean == (0.5, 0.5, 0.5)


@pytest.mark.parametrize("shared", [False, True])
def test_damaged_in_any_way(shared: bool, damaged: Callable[[Source], None]) -> None:
    theirs = made(use_shared_relative_position_bias=shared)
    config = json.loads(json.dumps(theirs.config.to_dict(), default=str))
    damaged(Source("it", "model.safetensors", theirs.state_dict(), config=config))


# ---- another image size


def test_another_size_at_load_is_that_size_at_run_time(tmp_path: Path) -> None:
    theirs = saved(tmp_path)
    checkpoint = load(tmp_path, image_size=(48, 80))
    assert checkpoint.config.grid == (3, 5)
    assert difference(checkpoint, theirs) <= 1e-4
    assert any("its steps between patches from a grid of (4, 4) to (3, 5) by bilinear" in n for n in checkpoint.notes)


# ---- back out


@pytest.mark.parametrize("model_class", [BeitForImageClassification, BeitModel])
@pytest.mark.parametrize("changes", [{}, {"use_mean_pooling": False}, {"layer_scale_init_value": 0.0}], ids=str)
def test_back_to_transformers(model_class: Any, changes: dict[str, Any], tmp_path: Path) -> None:
    theirs = saved(tmp_path / "theirs", model_class, **changes)
    convert(tmp_path / "theirs", tmp_path / "ours.safetensors")
    convert(tmp_path / "ours.safetensors", tmp_path / "back", to="transformers")
    auto = AutoModelForImageClassification if model_class is BeitForImageClassification else AutoModel
    again = auto.from_pretrained(tmp_path / "back")
    assert type(again) is model_class
    assert (answer_of(again) - answer_of(theirs)).abs().max() <= 1e-5
    assert load(tmp_path / "back").config == load(tmp_path / "theirs").config


@pytest.mark.parametrize("changes", [{}, {"use_mean_pooling": False}], ids=str)
def test_from_transformers_to_timm(changes: dict[str, Any], tmp_path: Path) -> None:
    theirs = saved(tmp_path / "theirs", **changes)
    convert(tmp_path / "theirs", tmp_path / "timm", to="timm")
    model = timm.create_model(f"local-dir:{tmp_path / 'timm'}", pretrained=True).eval()
    with torch.no_grad():
        assert (model(NATIVE) - answer_of(theirs, NATIVE)).abs().max() <= 1e-4


def test_a_learned_bias_of_the_keys_is_not_missed(tmp_path: Path) -> None:
    """Neither library has one; it adds the same to all scores of a query, so the answer is the same without it."""
    saved(tmp_path / "theirs")
    checkpoint = load(tmp_path / "theirs")
    with torch.no_grad():
        checkpoint.model.blocks[0].attention.qkv.bias[48:96] = torch.randn(48)
        expected = checkpoint.model(NATIVE)
    checkpoint.save(tmp_path / "ours.safetensors")
    convert(tmp_path / "ours.safetensors", tmp_path / "back", to="transformers")
    again = AutoModelForImageClassification.from_pretrained(tmp_path / "back")
    assert (answer_of(again, NATIVE) - expected).abs().max() <= 1e-5


@pytest.mark.parametrize("to", ["transformers", "timm"])
@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"registers": 2}, "registers 2 cannot be written"),
        ({"mlp_norm": True}, "mlp_norm True cannot be written"),
        ({"attention_norm": True}, "attention_norm True cannot be written"),
        ({"activation": "swiglu"}, "activation 'swiglu' cannot be written"),
        ({"positions": "sincos2d"}, "positions 'sincos2d' cannot be written"),
        ({"pool": "mean", "final_norm": "tokens"}, "final_norm 'tokens' cannot be written"),
    ],
    ids=str,
)
def test_what_their_beit_has_not_is_named(changes: dict[str, Any], words: str, to: str, tmp_path: Path) -> None:
    settings = {"relative_bias": True, "positions": "none", **changes}
    with pytest.raises(VitrailError, match=re.escape(words)):
        convert("mu/16", tmp_path / "theirs", to=to, **settings)
    assert not (tmp_path / "theirs").exists()


# ---- looked into, and trained

CONFIG = ViTConfig(
    image_size=32,
    patch_size=8,
    width=32,
    heads=2,
    depth=2,
    classes=3,
    relative_bias=True,
    positions="none",
    registers=1,
)


def lively() -> ViT:
    return randomise_all(ViT(CONFIG))


def test_attention_that_is_shown_is_the_attention_that_was(tmp_path: Path) -> None:
    theirs = saved(tmp_path, attn_implementation="eager")
    maps = attention_of_all(load(tmp_path).model, IMAGES)
    with torch.no_grad():
        expected = theirs.eval()(IMAGES, output_attentions=True).attentions
    for block, (_, shown) in zip(expected, maps, strict=True):
        rows = torch.cat([group.weights for group in shown], dim=1)  # (B, M, M)
        assert (rows - block.mean(1)).abs().max() <= 1e-5


def test_dropped_patches_keep_their_steps() -> None:
    """Tokens that are left out of training are masked out of attention, and every step stays what it is."""
    model = lively()
    images = torch.randn(1, 3, 32, 32)
    keep = torch.tensor([0, 5, 6, 15])
    with torch.no_grad():
        found = model(images, keep=keep)
        embedding = model.embed(images)
        left = torch.cat([torch.arange(2), keep + 2])
        x = embedding.tokens
        hidden = torch.full((1, 1, 18), float("-inf")).index_fill(2, left, 0.0)
        for block in model.blocks:
            bias = block.attention_bias((4, 4)) + hidden
            x = x + block.branch1(block.attention(block.norm1(x), bias=bias))
            x = x + block.branch2(block.mlp(block.norm2(x)))
        assert (found - model.answer(x)).abs().max() <= 1e-5


def test_prefix_tokens_have_steps_of_their_own() -> None:
    bias = lively().blocks[0].attention_bias((4, 4))  # (2, 18, 18)
    assert bias.shape == (2, 18, 18)
    for rows, columns in ((slice(2), slice(2, None)), (slice(2, None), slice(2)), (slice(2), slice(2))):
        assert len(bias[0, rows, columns].unique()) == 1
    patches = bias[0, 2:, 2:].unflatten(0, (4, 4)).unflatten(2, (4, 4))
    assert patches[0, 0, 1, 2] == patches[2, 1, 3, 3] and patches[0, 0, 1, 2] != patches[1, 2, 0, 0]
