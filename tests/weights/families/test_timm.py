"""timm's ViTs in and out, against timm itself, on weights in which every parameter matters."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import timm
import torch
from safetensors.torch import save_file
from timm.models import VisionTransformer
from timm.models._registry import _module_to_models
from timm.models.deit import VisionTransformerDistilled
from torch import Tensor, nn

from vitrail.commands.convert import convert
from vitrail.errors import VitrailError
from vitrail.model.config import ViTConfig
from vitrail.model.vit import ViT
from vitrail.weights.checkpoint import Checkpoint
from vitrail.weights.families import recognise
from vitrail.weights.families import timm as family
from vitrail.weights.load import load
from vitrail.weights.preprocessing import CLIP, HALF, IMAGENET, Preprocessing
from vitrail.weights.source import Source

SMALL = {"img_size": 64, "patch_size": 16, "embed_dim": 48, "depth": 3, "num_heads": 3, "num_classes": 10}
SMALL_14 = {**SMALL, "img_size": 56, "patch_size": 14}
WIDE = {"img_size": 64, "depth": 2, "num_classes": 10}  # real width, few blocks
SIZES = {16: [(64, 64), (96, 96), (48, 112)], 14: [(56, 56), (84, 84), (42, 98)]}

VARIANTS: list[dict[str, Any]] = [  # of the plain ViT, by arguments that a config.json can hold
    {},
    {"final_norm": False},
    {"pos_embed": "none"},
    {"num_classes": 0},
    {"in_chans": 4},
    {"img_size": (64, 96), "patch_size": (16, 8)},
    {"qk_norm": True},
    {"scale_mlp_norm": True},
    {"scale_attn_norm": True},
    {"global_pool": "avg"},  # the norm comes after the mean
    {"global_pool": "avg", "fc_norm": False},  # the norm comes before the mean
    {"reg_tokens": 4},  # the registers have positions
]
ARCHITECTURES_OF_16 = """
    vit_base_patch16_224_miil vit_base_patch16_gap_224 vit_medium_patch16_reg4_gap_256 test_vit2
    deit_small_patch16_224 deit_small_distilled_patch16_224 deit3_base_patch16_224
    vit_base_patch16_clip_224 vit_base_patch16_clip_quickgelu_224
    vit_base_patch16_siglip_224 vit_so400m_patch16_siglip_256 vit_base_patch16_siglip_gap_224
"""
WIDE_ARCHITECTURES_OF_16 = """
    vit_small_patch16_224 vit_base_patch16_224 deit_small_patch16_224 deit_base_distilled_patch16_224
    vit_base_patch16_clip_224 vit_base_patch16_siglip_224
"""
SMALL_CASES: list[tuple[str, dict[str, Any]]] = [
    *(("vit_base_patch16_224", {**SMALL, **variant}) for variant in VARIANTS),
    *((architecture, SMALL) for architecture in ARCHITECTURES_OF_16.split()),
    *((architecture, SMALL_14) for architecture in ("vit_small_patch14_dinov2", "vit_small_patch14_reg4_dinov2")),
    ("vit_giant_patch14_dinov2", {**SMALL_14, "mlp_ratio": 4.0}),  # SwiGLU
]
WIDE_CASES: list[tuple[str, dict[str, Any]]] = [
    *((architecture, WIDE) for architecture in WIDE_ARCHITECTURES_OF_16.split()),
    ("vit_base_patch14_reg4_dinov2", {**WIDE, "img_size": 56}),
]


@pytest.fixture
def folder(tmp_path: Path, randomise: Callable) -> Callable[..., tuple[Path, nn.Module]]:
    """A random model of an architecture, and the folder timm itself makes of it."""

    def make(architecture: str, arguments: dict[str, Any], seed: int = 0) -> tuple[Path, nn.Module]:
        model = timm.create_model(architecture, **arguments, dynamic_img_size=True, weight_init="skip")
        randomise(model, seed)
        timm.models.save_for_hf(model, tmp_path, model_args=arguments, safe_serialization=True)
        return tmp_path, model

    return make


def images_of(size: tuple[int, int], channels: int = 3) -> Tensor:
    return torch.randn(2, channels, *size, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize(("architecture", "arguments"), SMALL_CASES + WIDE_CASES)
def test_parity(
    architecture: str, arguments: dict[str, Any], folder: Callable, outputs: Callable, compare: Callable
) -> None:
    path, theirs = folder(architecture, arguments)
    checkpoint = load(path)
    for size in SIZES[theirs.patch_embed.patch_size[0]]:
        images = images_of(size, theirs.in_chans)
        compare(checkpoint.model, images, *outputs(theirs, theirs.blocks, images))
    assert checkpoint.provenance["family"] == "timm"


@pytest.mark.parametrize("architecture", ["vit_small_patch16_224", "vit_base_patch16_224"])
def test_parity_at_full_size(architecture: str, folder: Callable, outputs: Callable, compare: Callable) -> None:
    path, theirs = folder(architecture, {})
    ours = load(path).model
    for size in [(224, 224), (160, 96)]:
        images = images_of(size)[:1]
        compare(ours, images, *outputs(theirs, theirs.blocks, images))


@pytest.mark.parametrize("architecture", ["vit_base_patch16_224", "vit_base_patch16_clip_224"])
def test_eps_is_the_architectures(architecture: str, folder: Callable, outputs: Callable, compare: Callable) -> None:
    """On tokens so small that eps decides what a norm gives out."""
    path, theirs = folder(architecture, SMALL)
    with torch.no_grad():
        for parameter in (*theirs.patch_embed.parameters(), theirs.cls_token, theirs.pos_embed):
            parameter *= 3e-3
        theirs.norm_pre = nn.Identity()  # it would bring the tokens back to 1
    state = {name: tensor for name, tensor in theirs.state_dict().items() if "norm_pre" not in name}
    if "patch_embed.proj.bias" not in state:
        state["patch_embed.proj.bias"] = torch.zeros(48)
    save_file(state, path / "model.safetensors")
    images = images_of((64, 64))
    expected = outputs(theirs, theirs.blocks[:0], images)[0]
    checkpoint = load(path)
    other = load(path, norm_eps=1e-5 if checkpoint.config.norm_eps == 1e-6 else 1e-6)
    with torch.no_grad():
        assert (checkpoint.model(images) - expected).abs().max() <= 1e-4
        assert (other.model(images) - expected).abs().max() > 1e-2


# ---- what is known without running anything

REFUSED = r"^aimv2|^beit3|_18x2_|_rpn_|_xp_|vit_d?p?wee|vit_dlittle|test_vit4|map_256"
PLAIN = r"vit_wee"  # of those, one that is plain
ARCHITECTURES = sorted(
    name
    for name in _module_to_models["vision_transformer"] | _module_to_models["deit"]
    if timm.models.is_model_pretrained(name) or not re.search("_(in21k|in21ft1k|dino|sam|laion2b)$", name)
)


def shallow(architecture: str, **arguments: Any) -> nn.Module:
    """The architecture with one block and no weights: shapes are all that is asked of it."""
    with torch.device("meta"):
        return timm.create_model(architecture, depth=1, **arguments)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_every_architecture_is_read_or_refused(architecture: str) -> None:
    theirs = shallow(architecture)
    stored = {"architecture": architecture, "global_pool": theirs.global_pool, "pretrained_cfg": theirs.pretrained_cfg}
    source = Source(architecture, "model.safetensors", theirs.state_dict(), config=json.loads(json.dumps(stored)))
    if re.search(REFUSED, architecture) and not re.search(PLAIN, architecture):
        with pytest.raises(VitrailError):
            recognise(source).convert(source, {})
        return
    assert recognise(source).NAME == "timm"
    foreign = family.convert(source, {})
    config, block = foreign.config, theirs.blocks[0]
    assert config.heads == block.attn.num_heads
    activation = {"GELU": "gelu", "GELUTanh": "gelu_tanh", "QuickGELU": "quick_gelu", "SiLU": "swiglu"}
    assert config.activation == activation[type(block.mlp.act).__name__]
    norms = [module for module in theirs.modules() if isinstance(module, nn.LayerNorm)]
    assert {config.norm_eps} == {norm.eps for norm in norms}
    assert config.pool == {"token": "cls", "avg": "mean", "map": "attention"}[theirs.global_pool]
    assert config.grid == theirs.patch_embed.grid_size
    assert config.prefix == theirs.num_prefix_tokens
    assert foreign.preprocessing.mean == tuple(theirs.pretrained_cfg["mean"])


def test_names_of_architectures_are_needed() -> None:
    """The test above would pass by luck if a name told nothing."""
    read = [family.read_timm_config(Source("", "", {}, config={"architecture": name})) for name in ARCHITECTURES]
    assert {told.activation for told in read} == {"gelu", "gelu_tanh", "quick_gelu"}
    assert {told.heads[0] for told in read} == {None, 16, 2, 3}
    assert len(ARCHITECTURES) > 150


def source_of(file: str, architecture: str, arguments: dict[str, Any], config: dict[str, Any] | None = None) -> Source:
    return Source(file, file, shallow(architecture, **arguments).state_dict(), config=config or {})


def test_a_bare_file_says_what_it_assumes() -> None:
    foreign = family.convert(source_of("vit.safetensors", "vit_base_patch16_224", {}), {})
    assert foreign.heads_from == "the published model of width 768; the file does not say"
    assert any("activation gelu, norm_eps 1e-06, pool cls" in note for note in foreign.notes)
    assert any("mean (0.5, 0.5, 0.5)" in note for note in foreign.notes)
    told = family.convert(source_of("vit.safetensors", "vit_base_patch16_224", {}), {"activation": "gelu", "heads": 6})
    assert any("norm_eps 1e-06, pool cls" in note and "gelu" not in note for note in told.notes)
    assert told.config.heads == 6 and told.heads_from == "given by the caller"


def test_a_width_that_nobody_published_needs_heads() -> None:
    source = source_of("vit.safetensors", "vit_base_patch16_224", {"embed_dim": 48, "num_heads": 3})
    with pytest.raises(VitrailError, match="how many heads its width of 48 has: load it with heads="):
        family.convert(source, {})
    assert family.convert(source, {"heads": 3}).config.heads == 3


@pytest.mark.parametrize(
    ("file", "architecture", "normalisation"),
    [
        ("model.safetensors", "vit_small_patch16_224", HALF),
        ("model.safetensors", "vit_base_patch16_siglip_224", HALF),
        ("model.safetensors", "vit_base_patch16_clip_224", CLIP),
        ("model.safetensors", "deit_small_distilled_patch16_224", IMAGENET),
        ("model.safetensors", "vit_small_patch14_reg4_dinov2", IMAGENET),
        ("model.safetensors", "deit3_small_patch16_224", IMAGENET),
        ("deit_small_patch16_224.safetensors", "deit_small_patch16_224", IMAGENET),
    ],
)
def test_normalisation_of_a_bare_file(file: str, architecture: str, normalisation: tuple) -> None:
    preprocessing = family.convert(source_of(file, architecture, {}), {}).preprocessing
    assert (preprocessing.mean, preprocessing.std) == normalisation


def test_preprocessing_comes_from_pretrained_cfg() -> None:
    stored = {
        "architecture": "vit_base_patch16_224",
        "label_names": ["cat", "dog"],
        "pretrained_cfg": {
            "input_size": [3, 256, 224],
            "interpolation": "bilinear",
            "crop_pct": 0.8,
            "crop_mode": "center",
            "mean": [0.1, 0.2, 0.3],
            "std": [0.4, 0.5, 0.6],
        },
    }
    source = source_of("model.safetensors", "vit_base_patch16_224", {"num_classes": 2, "img_size": (256, 224)}, stored)
    foreign = family.convert(source, {})
    assert foreign.preprocessing == Preprocessing(
        size=(256, 224),
        resize="crop",
        crop_fraction=0.8,
        interpolation="bilinear",
        mean=(0.1, 0.2, 0.3),
        std=(0.4, 0.5, 0.6),
        crop_offset="round",
    )
    assert foreign.labels == ["cat", "dog"] and foreign.notes == []
    source.config = {**stored.pop("pretrained_cfg"), **stored, "labels": ["cat", "dog"]}  # as older folders have it
    assert family.convert(source, {}).preprocessing == foreign.preprocessing
    source.config = {**source.config, "crop_mode": "squash"}
    squashed = family.convert(source, {})
    assert (squashed.preprocessing.resize, squashed.preprocessing.crop_fraction) == ("squash", 0.8)
    assert squashed.notes == []
    source.config = {**source.config, "crop_mode": "border"}
    padded = family.convert(source, {})
    assert (padded.preprocessing.resize, padded.preprocessing.crop_fraction) == ("pad", 1.0)
    assert any("cuts images to the middle 0.8 after pad" in note for note in padded.notes)


def test_an_image_size_of_no_whole_patches() -> None:
    stored = {"architecture": "vit_so400m_patch14_siglip_384", "pretrained_cfg": {"input_size": [3, 384, 384]}}
    foreign = family.convert(source_of("model.safetensors", "vit_so400m_patch14_siglip_384", {}, stored), {})
    assert foreign.config.image_size == foreign.preprocessing.size == (378, 378)
    assert any("(378, 378), whole patches, not to the (384, 384)" in note for note in foreign.notes)


def test_clips_projection_is_no_classifier() -> None:
    assert (
        family.convert(source_of("m.safetensors", "vit_base_patch16_clip_224", {"num_classes": 512}), {}).task
        == "embed"
    )
    assert family.convert(source_of("m.safetensors", "vit_base_patch16_clip_224", {}), {}).task == "classify"
    assert family.convert(source_of("m.safetensors", "vit_base_patch16_224", {"num_classes": 0}), {}).task == "embed"


def test_timms_notes_are_passed_on() -> None:
    stored = {"architecture": "vit_base_patch32_clip_224", "pretrained_cfg": {"notes": ["natively QuickGELU"]}}
    source = source_of("model.safetensors", "vit_base_patch32_clip_224", {}, stored)
    assert "timm notes: natively QuickGELU" in family.convert(source, {}).notes


def test_positions_of_registers_are_added_to_them(folder: Callable) -> None:
    path, theirs = folder("vit_base_patch16_224", {**SMALL, "reg_tokens": 4})
    ours = load(path)
    assert torch.equal(ours.model.registers, (theirs.reg_token + theirs.pos_embed[:, 1:5])[0])
    assert torch.equal(ours.model.positions.table, torch.cat([theirs.pos_embed[0, :1], theirs.pos_embed[0, 5:]]))


@pytest.mark.parametrize(
    ("arguments", "config", "words"),
    [
        ({}, {"architecture": "vit_base_patch16_rope_224"}, "rotary positions"),
        ({}, {"model_args": {"act_layer": "relu"}}, "act_layer 'relu'"),
        ({}, {"model_args": {"norm_layer": "rmsnorm"}}, "norm_layer 'rmsnorm'"),
        ({}, {"global_pool": "avgmax"}, "global_pool 'avgmax'"),
        ({}, {"global_pool": ["avg"]}, "global_pool"),
        ({"pos_embed": "none"}, {}, "no pos_embed"),
        ({"reg_tokens": 2, "global_pool": "map"}, {}, "pool_include_prefix False with pool 'attention'"),
        ({}, {"architecture": "eva02_enormous_patch14_clip_224"}, "norms after its branches"),
        ({}, {"architecture": "eva02_tiny_patch14_224", "model_args": {"rope_type": "mixed"}}, "rope_type is 'mixed'"),
        ({}, {"model_args": []}, "no objects of named fields"),
    ],
)
def test_other_networks_are_refused(arguments: dict[str, Any], config: dict[str, Any] | None, words: str) -> None:
    stored = None if config is None else {"architecture": "vit_base_patch16_224", **config}
    with pytest.raises(VitrailError, match=re.escape(words)):
        family.convert(source_of("model.safetensors", "vit_base_patch16_224", arguments, stored), {})


@pytest.mark.parametrize("arguments", [{}, {"reg_tokens": 2}, {"global_pool": "map", "class_token": False}])
def test_damaged_in_any_way(arguments: dict[str, Any], damaged: Callable) -> None:
    model = VisionTransformer(img_size=32, patch_size=8, embed_dim=24, depth=2, num_heads=3, **arguments)
    stored = {
        "architecture": "vit_base_patch16_224",
        "global_pool": model.global_pool,
        "label_names": ["cat", "dog"],
        "model_args": {"num_heads": 3, "img_size": 32, "act_layer": "gelu", "norm_layer": "layernorm", "pos_embed": ""},
        "pretrained_cfg": {"input_size": [3, 32, 32], "mean": [0.5] * 3, "std": [0.5] * 3, "crop_pct": 1, "notes": []},
    }
    damaged(Source("it", "model.safetensors", model.state_dict(), config=stored))


# ---- and back out


@pytest.mark.parametrize(("architecture", "arguments"), SMALL_CASES)
def test_back_out(architecture: str, arguments: dict[str, Any], folder: Callable, tmp_path: Path) -> None:
    ours = load(folder(architecture, arguments)[0])
    family.write_folder(ours, tmp_path / "out")
    theirs = timm.create_model(f"local-dir:{tmp_path / 'out'}", pretrained=True).eval()
    again = load(tmp_path / "out")
    images = images_of(ours.config.image_size, ours.config.channels)
    with torch.no_grad():
        answer = ours.model(images)
        assert (theirs(images) - answer).abs().max() <= 1e-4
        assert torch.equal(again.model(images), answer) or (again.model(images) - answer).abs().max() <= 1e-6
    assert again.preprocessing == ours.preprocessing
    if ours.config.registers == 0:  # with them, the position of [CLS] has moved into its token
        assert again.config == ours.config.replace(layer_scale=again.config.layer_scale)
        assert all(torch.equal(a, b) for a, b in zip(ours.model.parameters(), again.model.parameters(), strict=True))


BASE = {"image_size": 32, "patch_size": 8, "width": 48, "depth": 2, "heads": 3, "classes": 5}
OWN: dict[str, dict[str, Any]] = {
    "sinusoids of rows and columns": {"positions": "sincos2d"},
    "sinusoids in one row": {"positions": "sincos1d", "cls_position": "learned"},
    "sinusoids, no class token": {"positions": "sincos1d", "cls_token": False, "pool": "mean"},
    "no positions": {"positions": "none"},
    "class token without a position": {"cls_position": "none"},
    "distillation without positions of prefix tokens": {"distillation": True, "cls_position": "none"},
    "distillation": {"distillation": True, "head_bias": False},
    "registers": {"registers": 3},
    "registers, no class token": {"registers": 3, "cls_token": False, "pool": "mean", "final_norm": "pooled"},
    "attention pool over all tokens": {"registers": 2, "pool": "attention"},
    "no biases": {"patch_bias": False, "qkv_bias": False, "head_bias": False},
    "CLIP's norm": {"stem_norm": True, "patch_bias": False, "norm_eps": 1e-5, "activation": "quick_gelu"},
    "SwiGLU": {"activation": "swiglu", "mlp_width": 100, "layer_scale": 0.0},
    "an odd width of the MLP": {"mlp_width": 101, "qk_norm": True, "activation": "gelu_tanh"},
    "13 channels, other shapes": {"channels": 13, "image_size": (32, 48), "patch_size": (8, 16)},
    "no head": {"classes": 0},
}


def own_checkpoint(changes: dict[str, Any], lively: Callable[..., ViT]) -> Checkpoint:
    model = lively(ViTConfig(**{**BASE, **changes}))
    labels = [f"class {i}" for i in range(model.config.classes)] or None
    preprocessing = Preprocessing(size=model.config.image_size, crop_fraction=0.9, crop_offset="round")
    preprocessing = preprocessing.for_channels(model.config.channels)
    return Checkpoint(model, preprocessing, task="classify" if labels else "embed", labels=labels)


@pytest.mark.parametrize("case", OWN)
def test_models_of_ours_out_and_in_again(case: str, lively: Callable[..., ViT], tmp_path: Path) -> None:
    ours = own_checkpoint(OWN[case], lively)
    family.write_folder(ours, tmp_path)
    theirs = timm.create_model(f"local-dir:{tmp_path}", pretrained=True).eval()
    again = load(tmp_path)
    images = images_of(ours.config.image_size, ours.config.channels)
    with torch.no_grad():
        answer = ours.model(images)
        assert (theirs(images) - answer).abs().max() <= 1e-4
        assert (again.model(images) - answer).abs().max() <= 1e-5
    assert (again.labels, again.task, again.preprocessing) == (ours.labels, ours.task, ours.preprocessing)
    assert again.config.heads == 3 and again.config.norm_eps == ours.config.norm_eps


@pytest.mark.parametrize("changes", [{}, {"norm_eps": 1e-3}, {"distillation": True}, {"activation": "swiglu"}])
def test_state_and_arguments(changes: dict[str, Any], lively: Callable[..., ViT]) -> None:
    ours = own_checkpoint(changes, lively)
    state, arguments = family.timm_state(ours)
    if ours.config.activation == "swiglu":
        arguments["mlp_layer"] = timm.layers.SwiGLUPacked
    theirs = (VisionTransformerDistilled if ours.config.distillation else VisionTransformer)(**arguments).eval()
    theirs.load_state_dict(state)
    images = images_of((32, 32))
    with torch.no_grad():
        assert (theirs(images) - ours.model(images)).abs().max() <= 1e-4


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"stem": "conv"}, "stem 'conv'"),
        ({"positions": "rotary", "activation": "gelu_tanh"}, "activation 'gelu_tanh'"),
        ({"positions": "rotary", "norm_eps": 1e-12}, "norm_eps 1e-12"),
        ({"pool": "attention", "pool_heads": 2}, "pool_heads 2"),
        ({"norm": "post"}, "norm 'post'"),
        ({"pool": "cls_mean"}, "pool 'cls_mean'"),
        ({"pool": "none"}, "pool 'none'"),
        ({"pool": "attention", "activation": "swiglu"}, "activation 'swiglu'"),
        ({"head": "mlp"}, "head 'mlp'"),
        ({"stem_norm": True}, "patch_bias True"),
        ({"distillation": True, "registers": 2}, "registers 2"),
        ({"distillation": True, "final_norm": "none"}, "final_norm 'none'"),
        ({"distillation": True, "classes": 0}, "classes 0"),
        ({"norm_eps": 1e-12}, "norm_eps 1e-12"),
        ({"norm_eps": 1e-5, "distillation": True}, "norm_eps 1e-05"),
    ],
)
def test_what_timm_cannot_express_is_named(
    changes: dict[str, Any], words: str, lively: Callable[..., ViT], tmp_path: Path
) -> None:
    with pytest.raises(VitrailError, match=re.escape(words)):
        family.write_folder(own_checkpoint(changes, lively), tmp_path)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"positions": "sincos2d"}, "positions 'sincos2d' were written as a table for (32, 32)"),
        ({"resample": "linear"}, "at another size than (32, 32) timm resamples positions by bicubic_antialias"),
    ],
)
def test_what_timm_does_otherwise_is_noted(
    changes: dict[str, Any], words: str, lively: Callable[..., ViT], tmp_path: Path
) -> None:
    checkpoint = own_checkpoint(changes, lively)
    family.write_folder(checkpoint, tmp_path)
    assert checkpoint.notes == [words]


@pytest.mark.parametrize(("task", "head"), [("segment", "mask_linear"), ("detect", "box_decoder")])
def test_tasks_that_timm_has_not(task: str, head: str, lively: Callable[..., ViT], tmp_path: Path) -> None:
    model = lively(ViTConfig(**{**BASE, "classes": 3, "head": head}))
    checkpoint = Checkpoint(model, Preprocessing(size=model.config.image_size), task, ["a", "b", "c"])
    with pytest.raises(VitrailError, match=f"task '{task}' cannot be written for timm"):
        family.write_folder(checkpoint, tmp_path)


def test_convert_writes_a_folder_for_timm(lively: Callable[..., ViT], tmp_path: Path) -> None:
    ours = own_checkpoint({}, lively)
    ours.save(tmp_path / "ours.safetensors")
    convert(tmp_path / "ours.safetensors", tmp_path / "for timm", to="timm")
    theirs = timm.create_model(f"local-dir:{tmp_path / 'for timm'}", pretrained=True, num_classes=7)
    assert theirs.head.weight.shape == (7, 48)  # timm itself can give it another head
