"""DINOv3 as transformers, timm and Meta have it: what differs between them, what is refused, and the way back."""

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
from transformers import AutoModel, DINOv3ViTConfig, DINOv3ViTModel

from benchmarks.peers.families import DINOV3, metas_dinov3, randomise_all, timm_peer
from vitrail.commands.convert import convert
from vitrail.errors import VitrailError
from vitrail.weights.checkpoint import Checkpoint
from vitrail.weights.load import load
from vitrail.weights.preprocessing import IMAGENET
from vitrail.weights.source import Source

SMALL = {
    **DINOV3,
    "hidden_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 3,
    "intermediate_size": 96,
    "image_size": 64,
}
PERIODS = 100.0 ** (torch.arange(4) / 4)
IMAGES = torch.randn(2, 3, 48, 80, generator=torch.Generator().manual_seed(1))


def made(**changes: Any) -> DINOv3ViTModel:
    model = DINOv3ViTModel(DINOv3ViTConfig(**{**SMALL, **changes}))
    randomise_all(model)
    return model


def saved(folder: Path, **changes: Any) -> DINOv3ViTModel:
    model = made(**changes)
    model.save_pretrained(folder)
    return model


def difference(checkpoint: Checkpoint, theirs: Tensor) -> float:
    with torch.no_grad():
        return float((checkpoint.model(IMAGES) - theirs).abs().max())


def answer_of(model: DINOv3ViTModel) -> Tensor:
    with torch.no_grad():
        return model.eval()(IMAGES).pooler_output


# ---- transformers


@pytest.mark.parametrize(
    "changes",
    [{"num_register_tokens": 0}, {"key_bias": True}, {"query_bias": False, "value_bias": False}, {"rope_theta": 50.0}],
    ids=str,
)
def test_variants_of_transformers(changes: dict[str, Any], tmp_path: Path) -> None:
    theirs = saved(tmp_path, **changes)
    assert difference(load(tmp_path), answer_of(theirs)) <= 1e-4


def test_names_in_memory_are_read_too() -> None:
    """transformers 5 calls the blocks model.layer.0, its files layer.0."""
    theirs = made()
    from vitrail.weights.families import recognise

    source = Source("it", "model.safetensors", theirs.state_dict(), config=theirs.config.to_dict())
    assert "model.layer.0.norm1.weight" in source.tensors
    assert recognise(source).convert(source, {}).config.depth == 2


@pytest.mark.parametrize(
    ("stored", "size", "resize"),
    [
        (None, (64, 64), "squash"),
        ({"image_processor_type": "DINOv3ViTImageProcessorFast"}, (224, 224), "squash"),
        ({"size": {"height": 96, "width": 128}, "resample": 2}, (96, 128), "squash"),
    ],
)
def test_preprocessing(stored: dict[str, Any] | None, size: tuple[int, int], resize: str, tmp_path: Path) -> None:
    saved(tmp_path)
    if stored is not None:
        (tmp_path / "preprocessor_config.json").write_text(json.dumps(stored))
    found = load(tmp_path).preprocessing
    assert (found.size, found.resize, found.interpolation) == (size, resize, "bilinear")
    assert (found.mean, found.std) == IMAGENET


@pytest.mark.parametrize(
    "changes", [{}, {"use_gated_mlp": True, "hidden_act": "silu"}, {"num_register_tokens": 0}], ids=str
)
def test_back_to_transformers(changes: dict[str, Any], tmp_path: Path) -> None:
    theirs = saved(tmp_path / "theirs", **changes)
    convert(tmp_path / "theirs", tmp_path / "ours.safetensors")
    convert(tmp_path / "ours.safetensors", tmp_path / "back", to="transformers")
    again = AutoModel.from_pretrained(tmp_path / "back")
    assert type(again) is DINOv3ViTModel
    assert (answer_of(again) - answer_of(theirs)).abs().max() <= 1e-5


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"rotary_grid": 16}, "rotary_grid (16, 16) cannot be written for transformers: it places patches by"),
        ({"mlp_norm": True}, "mlp_norm True cannot be written"),
        ({"attention_norm": True}, "attention_norm True cannot be written"),
        ({"classes": 3}, "classes 3 cannot be written for transformers"),
        ({"pool": "mean"}, "pool 'mean' cannot be written"),
        ({"positions": "learned", "rotary_too": True}, "positions 'learned' cannot be written"),
    ],
    ids=str,
)
def test_what_its_dinov3_has_not_is_named(changes: dict[str, Any], words: str, tmp_path: Path) -> None:
    settings = {"positions": "rotary", "classes": 0, **changes}
    with pytest.raises(VitrailError, match=re.escape(words)):
        convert("mu/16", tmp_path / "theirs", to="transformers", **settings)
    assert not (tmp_path / "theirs").exists()


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"hidden_act": "gelu", "use_gated_mlp": True}, "hidden_act 'gelu' in a gated MLP"),
        ({"image_size": "large"}, "image_size 'large'"),
        ({"model_type": "dinov3_convnext"}, "model_type 'dinov3_convnext'"),
    ],
)
def test_configs_that_do_not_fit(changes: dict[str, Any], words: str) -> None:
    from vitrail.weights.families import transformers_dinov3 as family

    theirs = made(use_gated_mlp=changes.get("use_gated_mlp", False))
    source = Source("it", "model.safetensors", theirs.state_dict(), config={**theirs.config.to_dict(), **changes})
    with pytest.raises(VitrailError, match=re.escape(words)):
        family.convert(source, {})


@pytest.mark.parametrize("gated", [False, True])
def test_damaged_in_any_way(gated: bool, damaged: Callable[[Source], None]) -> None:
    theirs = made(use_gated_mlp=gated, hidden_act="silu" if gated else "gelu")
    config = json.loads(json.dumps(theirs.config.to_dict(), default=str))
    damaged(Source("it", "model.safetensors", theirs.state_dict(), config=config))


# ---- timm


def test_without_a_head_it_is_pooled_by_cls_where_timm_averages(tmp_path: Path) -> None:
    built = timm_peer("DINOv3", "vit_small_patch16_dinov3", 16, 64, num_classes=0).build("small", tmp_path)
    checkpoint = load(tmp_path)
    assert checkpoint.config.pool == "cls"
    assert any("timm averages the patches, which is pool='mean'" in note for note in checkpoint.notes)
    assert difference(load(tmp_path, pool="mean"), built.run(IMAGES)[0]) <= 1e-4


@pytest.mark.parametrize("gated", [False, True])
def test_from_transformers_to_timm(gated: bool, tmp_path: Path) -> None:
    theirs = saved(tmp_path / "theirs", use_gated_mlp=gated, hidden_act="silu" if gated else "gelu")
    convert(tmp_path / "theirs", tmp_path / "timm", to="timm")
    model = timm.create_model(f"local-dir:{tmp_path / 'timm'}", pretrained=True).eval()
    with torch.no_grad():
        assert (model(IMAGES) - answer_of(theirs)).abs().max() <= 1e-4
    assert load(tmp_path / "timm").config == load(tmp_path / "theirs").config.replace(
        resample="bicubic_antialias", layer_scale=1e-5
    )


# ---- Meta


def metas(folder: Path, model: DINOv3ViTModel, **changes: Tensor | None) -> Path:
    state = {**metas_dinov3(model.state_dict(), PERIODS.to(torch.bfloat16)), **changes}
    torch.save({name: tensor for name, tensor in state.items() if tensor is not None}, folder / "dinov3_vits16.pth")
    return folder / "dinov3_vits16.pth"


def test_metas_file_keeps_its_periods_in_bfloat16(tmp_path: Path) -> None:
    theirs = made()
    checkpoint = load(metas(tmp_path, theirs), heads=3)
    assert checkpoint.provenance["family"] == "meta" and checkpoint.config.rotary_bfloat16
    assert difference(checkpoint, answer_of(theirs)) > 1e-4  # transformers computes them in float32
    with torch.no_grad():
        theirs.rope_embeddings.inv_freq.copy_(1 / PERIODS.to(torch.bfloat16).float())
    assert difference(checkpoint, answer_of(theirs)) <= 1e-4
    assert "the biases of its keys were left out, as its bias_mask says" in checkpoint.notes
    prepared = checkpoint.preprocessing
    assert (prepared.size, prepared.resize, prepared.interpolation) == ((256, 256), "squash", "bilinear")
    written = convert(tmp_path / "dinov3_vits16.pth", tmp_path / "theirs", to="transformers", heads=3)
    assert "transformers computes rotary periods in float32" in written.notes[-1]


@pytest.mark.parametrize("periods", [None, PERIODS])
def test_periods_in_float32_stay_so(periods: Tensor | None, tmp_path: Path) -> None:
    theirs = made()
    checkpoint = load(metas(tmp_path, theirs, **{"rope_embed.periods": periods}), heads=3)
    assert not checkpoint.config.rotary_bfloat16
    assert difference(checkpoint, answer_of(theirs)) <= 1e-4


@pytest.mark.parametrize(
    ("name", "tensor", "words"),
    [
        ("blocks.1.attn.qkv.bias_mask", torch.full((144,), float("nan")), "its bias_mask is NaN"),
        ("blocks.1.attn.qkv.bias_mask", torch.ones(7), "of another shape than the bias"),
        ("rope_embed.periods", 2 * PERIODS, "are not 100^(4i/d)"),
    ],
)
def test_files_that_are_not_as_published(name: str, tensor: Tensor, words: str, tmp_path: Path) -> None:
    with pytest.raises(VitrailError, match=re.escape(words)):
        load(metas(tmp_path, made(), **{name: tensor}), heads=3)


def test_heads_of_the_published_widths() -> None:
    from vitrail.weights.families import meta

    with torch.device("meta"):
        model = DINOv3ViTModel(DINOv3ViTConfig(**{**SMALL, "hidden_size": 1280, "num_attention_heads": 20}))
    state = metas_dinov3(model.state_dict(), 100.0 ** (torch.arange(16) / 16))
    state = {name: torch.ones(tensor.shape) if tensor.is_meta else tensor for name, tensor in state.items()}
    assert meta.convert(Source("it", "dinov3.pth", state), {}).config.heads == 20
