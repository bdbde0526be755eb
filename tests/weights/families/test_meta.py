"""Meta's .pth files, against timm and transformers, and its way of taking positions to another size, transcribed."""

from __future__ import annotations

import argparse
import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import timm
import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from timm.models import VisionTransformer
from timm.models.vision_transformer import checkpoint_filter_fn
from torch import Tensor, nn
from transformers import Dinov2Config, Dinov2Model, Dinov2WithRegistersConfig, Dinov2WithRegistersModel

from vitrail.errors import VitrailError
from vitrail.model.positions import resample
from vitrail.weights.load import load
from vitrail.weights.preprocessing import IMAGENET
from vitrail.weights.source import Source

SMALL = {"img_size": 64, "patch_size": 16, "embed_dim": 48, "depth": 3, "num_heads": 3, "num_classes": 0}
SMALL_14 = {**SMALL, "img_size": 70, "patch_size": 14, "init_values": 1.0}
State = dict[str, Tensor]


def metas_positions(table: Tensor, height: int, width: int, patch: int, registers: bool) -> Tensor:
    """Meta's interpolate_pos_encoding, told again from its description: (1, 1 + M M, D) -> (1, 1 + h w, D).

    DINO and DINOv2 give interpolate a scale, (new + 0.1) / M, for fear that flooring might lose a row; DINOv2 with
    registers gives it the size, and antialiases.
    """
    patches, count = table[:, 1:], table.shape[1] - 1
    side = int(math.sqrt(count))
    rows, columns = height // patch, width // patch
    if rows * columns == count and height == width:
        return table
    square = patches.reshape(1, side, side, -1).permute(0, 3, 1, 2)
    if registers:
        larger = F.interpolate(square, size=(rows, columns), mode="bicubic", antialias=True)
    else:
        scale = ((rows + 0.1) / side, (columns + 0.1) / side)
        larger = F.interpolate(square, scale_factor=scale, mode="bicubic")
    assert larger.shape[-2:] == (rows, columns)
    return torch.cat([table[:, :1], larger.permute(0, 2, 3, 1).flatten(1, 2)], dim=1)


@pytest.mark.parametrize("registers", [False, True])
@pytest.mark.parametrize(
    ("native", "size"),
    [
        (518, (518, 518)),
        (518, (224, 224)),
        (518, (98, 98)),
        (518, (224, 518)),
        (518, (518, 224)),
        (518, (700, 336)),
        (224, (448, 448)),
        (224, (112, 896)),
        (98, (1036, 84)),
    ],
)
def test_resampling_is_metas(native: int, size: tuple[int, int], registers: bool) -> None:
    side = native // 14
    table = torch.randn(1, 1 + side * side, 16, generator=torch.Generator().manual_seed(0))
    expected = metas_positions(table, *size, 14, registers)
    rule = "bicubic_antialias" if registers else "bicubic_offset"
    ours = resample(table[0, 1:], (side, side), (size[0] // 14, size[1] // 14), rule)
    assert torch.equal(ours, expected[0, 1:])


# ---- models as Meta would have stored them


def dinov2_state(model: nn.Module, chunks: int = 0) -> State:
    """A timm model under DINOv2's names: `mask_token`, `w12`, `register_tokens`, blocks in chunks."""
    state: State = {"mask_token": torch.randn(1, model.embed_dim)}
    swiglu = hasattr(model.blocks[0].mlp, "gate_last")
    for name, tensor in model.state_dict().items():
        if swiglu:
            name = name.replace("mlp.fc1", "mlp.w12").replace("mlp.fc2", "mlp.w3")
        if chunks and name.startswith("blocks."):
            number = int(name.split(".")[1])
            name = name.replace("blocks.", f"blocks.{number // math.ceil(len(model.blocks) / chunks)}.", 1)
        state[name.replace("reg_token", "register_tokens")] = tensor.clone()
    return state


def at_size(model: nn.Module, size: tuple[int, int], arguments: dict[str, Any], registers: bool) -> nn.Module:
    """The same network for another size, with Meta's positions for it."""
    other = VisionTransformer(**{**arguments, "img_size": size, "weight_init": "skip"})
    table = metas_positions(model.pos_embed.detach(), *size, arguments["patch_size"], registers)
    other.load_state_dict({**model.state_dict(), "pos_embed": table})
    return other.eval()


@pytest.fixture
def made(randomise: Callable) -> Callable[..., nn.Module]:
    return lambda arguments: randomise(VisionTransformer(**{**arguments, "weight_init": "skip"}))


def images_of(size: tuple[int, int]) -> Tensor:
    return torch.randn(2, 3, *size, generator=torch.Generator().manual_seed(1))


def wide(arguments: dict[str, Any], width: int) -> dict[str, Any]:
    return {**arguments, "embed_dim": width, "num_heads": width // 64, "depth": 2}


DINOV1 = {"small": SMALL, "S": wide(SMALL, 384), "B": wide({**SMALL, "patch_size": 8}, 768)}
DINOV2 = {
    "small": SMALL_14,
    "S": wide(SMALL_14, 384),
    "B": wide(SMALL_14, 768),
    "S at 518": {**wide(SMALL_14, 384), "img_size": 518},
    "SwiGLU": {**SMALL_14, "mlp_layer": timm.layers.SwiGLUPacked, "act_layer": nn.SiLU},
}


@pytest.mark.parametrize("case", DINOV1)
def test_parity_of_dino(case: str, made: Callable, outputs: Callable, compare: Callable, tmp_path: Path) -> None:
    theirs = made(DINOV1[case])
    torch.save(theirs.state_dict(), tmp_path / "dino_pretrain.pth")
    checkpoint = load(tmp_path / "dino_pretrain.pth", heads=DINOV1[case]["num_heads"])
    for size in [(64, 64), (96, 96), (48, 112)]:
        images, other = images_of(size), at_size(theirs, size, DINOV1[case], registers=False)
        compare(checkpoint.model, images, *outputs(other, other.blocks, images))
    assert checkpoint.provenance["family"] == "meta"
    assert any("taken for Meta's DINO" in note and "family='timm'" in note for note in checkpoint.notes)


@pytest.mark.parametrize("case", DINOV2)
def test_parity_of_dinov2(case: str, made: Callable, outputs: Callable, compare: Callable, tmp_path: Path) -> None:
    theirs = made(DINOV2[case])
    torch.save(dinov2_state(theirs), tmp_path / "dinov2.pth")
    checkpoint = load(tmp_path / "dinov2.pth", heads=DINOV2[case]["num_heads"])
    assert checkpoint.config.image_size == (DINOV2[case]["img_size"],) * 2
    sizes = [(224, 224), (112, 70)] if case == "S at 518" else [(70, 70), (98, 98), (56, 112)]
    for size in sizes:
        images, other = images_of(size), at_size(theirs, size, DINOV2[case], registers=False)
        compare(checkpoint.model, images, *outputs(other, other.blocks, images))


@pytest.mark.parametrize("case", ["small", "S", "SwiGLU"])
def test_timm_reads_the_same_file_alike(
    case: str, made: Callable, outputs: Callable, compare: Callable, tmp_path
) -> None:
    """With timm's own reader of DINOv2's names."""
    state = dinov2_state(made(DINOV2[case]))
    torch.save(state, tmp_path / "dinov2.pth")
    theirs = VisionTransformer(**DINOV2[case]).eval()
    theirs.load_state_dict(checkpoint_filter_fn(state, theirs))
    images = images_of((70, 70))
    ours = load(tmp_path / "dinov2.pth", heads=DINOV2[case]["num_heads"]).model
    compare(ours, images, *outputs(theirs, theirs.blocks, images))


@pytest.mark.parametrize("width", [48, 384])
def test_parity_with_registers(width: int, randomise: Callable, outputs: Callable, compare: Callable, tmp_path) -> None:
    """[CLS] has a position, registers have none: timm's reader adds that position to the token, ours keeps it."""
    heads = {48: 3, 384: 6}[width]
    arguments = {**SMALL_14, "embed_dim": width, "num_heads": heads, "dynamic_img_size": True}
    state = dinov2_state(randomise(VisionTransformer(**arguments)))
    state["register_tokens"] = torch.randn(1, 4, width)
    torch.save(state, tmp_path / "dinov2_reg4.pth")
    theirs = VisionTransformer(**arguments, reg_tokens=4, no_embed_class=True).eval()
    theirs.load_state_dict(checkpoint_filter_fn(dict(state), theirs))
    checkpoint = load(tmp_path / "dinov2_reg4.pth", heads=heads)
    assert (checkpoint.config.registers, checkpoint.config.cls_position) == (4, "learned")
    for size in [(70, 70), (98, 98), (56, 112)]:  # Meta's rule with registers is timm's
        images = images_of(size)
        compare(checkpoint.model, images, *outputs(theirs, theirs.blocks, images))


TRANSFORMERS = (  # Meta's names -> those that transformers publishes
    (r"^(cls_token|mask_token|register_tokens)$", r"embeddings.\1"),
    (r"^pos_embed$", "embeddings.position_embeddings"),
    (r"^patch_embed\.proj", "embeddings.patch_embeddings.projection"),
    (r"^norm\.", "layernorm."),
    (r"^blocks\.", "encoder.layer."),
    (r"\.attn\.proj\.", ".attention.output.dense."),
    (r"\.ls(\d)\.gamma", r".layer_scale\1.lambda1"),
    (r"\.mlp\.w12\.", ".mlp.weights_in."),
    (r"\.mlp\.w3\.", ".mlp.weights_out."),
)


def transformers_state(state: State) -> State:
    renamed: State = {}
    for name, tensor in state.items():
        for of_meta, theirs in TRANSFORMERS:
            name = re.sub(of_meta, theirs, name)
        if ".attn.qkv." in name:
            for part, piece in zip(("query", "key", "value"), tensor.chunk(3), strict=True):
                renamed[name.replace("attn.qkv", f"attention.attention.{part}")] = piece
        else:
            renamed[name] = tensor
    return renamed


@pytest.mark.parametrize("registers", [0, 4])
@pytest.mark.parametrize("swiglu", [False, True])
def test_parity_with_transformers(registers: int, swiglu: bool, made: Callable, tmp_path: Path) -> None:
    state = dinov2_state(made(DINOV2["SwiGLU" if swiglu else "small"]))
    if swiglu:  # transformers makes the width of SwiGLU from the ratio: 128 for a width of 48, and so a multiple of 8
        for i in range(3):
            state |= {
                f"blocks.{i}.mlp.w12.weight": torch.randn(256, 48) / 7,
                f"blocks.{i}.mlp.w12.bias": torch.randn(256),
            }
            state[f"blocks.{i}.mlp.w3.weight"] = torch.randn(48, 128) / 11
    kind, config = (Dinov2Model, Dinov2Config)
    more = {}
    if registers:
        state["register_tokens"] = torch.randn(1, registers, 48)
        kind, config, more = Dinov2WithRegistersModel, Dinov2WithRegistersConfig, {"num_register_tokens": registers}
    sizes = {"hidden_size": 48, "num_hidden_layers": 3, "num_attention_heads": 3, "image_size": 70, "patch_size": 14}
    config(**sizes, use_swiglu_ffn=swiglu, layer_norm_eps=1e-6, **more).save_pretrained(tmp_path / "theirs")
    named = {name: tensor.contiguous() for name, tensor in transformers_state(state).items()}
    save_file(named, tmp_path / "theirs" / "model.safetensors", {"format": "pt"})
    theirs, report = kind.from_pretrained(tmp_path / "theirs", output_loading_info=True)
    assert not report["missing_keys"] and not report["unexpected_keys"]
    torch.save(state, tmp_path / "dinov2.pth")
    ours = load(tmp_path / "dinov2.pth", heads=3).model
    for size in [(70, 70), (98, 98)] if registers else [(70, 70)]:  # without registers, the way to 98 differs
        with torch.no_grad():
            found = theirs(images_of(size), output_hidden_states=True)
            features = ours.features(images_of(size), blocks=range(3))
            assert (ours(images_of(size)) - found.pooler_output).abs().max() <= 1e-4
        for block, hidden in zip(features.blocks, found.hidden_states[1:], strict=True):
            assert (block - hidden).abs().max() <= 1e-3


# ---- training checkpoints


def prefixed(state: State, prefix: str) -> State:
    return {prefix + name: tensor for name, tensor in state.items()}


def test_dinos_training_checkpoint(made: Callable, tmp_path: Path) -> None:
    teacher, student = made(SMALL).state_dict(), {n: t + 1 for n, t in made(SMALL).state_dict().items()}
    head = {"head.mlp.0.weight": torch.ones(3, 3)}
    content = {
        "student": prefixed({**prefixed(student, "backbone."), **head}, "module."),
        "teacher": {**prefixed(teacher, "backbone."), **head},
        "epoch": 3,
        "args": argparse.Namespace(arch="vit_small"),
    }
    torch.save(content, tmp_path / "checkpoint.pth")
    checkpoint = load(tmp_path / "checkpoint.pth", heads=3)
    assert torch.equal(checkpoint.model.cls_token, teacher["cls_token"][0])
    assert any("found under teacher backbone." in note for note in checkpoint.notes)
    del content["teacher"]
    torch.save(content, tmp_path / "checkpoint.pth")
    assert torch.equal(load(tmp_path / "checkpoint.pth", heads=3).model.cls_token, student["cls_token"][0])


@pytest.mark.parametrize("chunks", [0, 1, 2, 3])
def test_chunked_blocks(chunks: int, made: Callable, tmp_path: Path) -> None:
    theirs = made(SMALL_14)
    state = dinov2_state(theirs, chunks)
    assert chunks == 0 or f"blocks.{chunks - 1}.2.norm1.weight" in state
    both = {**prefixed(state, "teacher.backbone."), "teacher.dino_head.mlp.0.bias": torch.ones(2)}
    both |= prefixed({n: t + 1 for n, t in state.items()}, "student.backbone.")
    torch.save({"model": both, "iteration": 7}, tmp_path / "model_0001.pth")
    torch.save({"teacher": prefixed(state, "backbone.")}, tmp_path / "teacher_checkpoint.pth")
    for file in ("model_0001.pth", "teacher_checkpoint.pth"):
        checkpoint = load(tmp_path / file, heads=3)
        images = images_of((70, 70))
        with torch.no_grad():
            assert (checkpoint.model(images) - theirs(images)).abs().max() <= 1e-4
        assert checkpoint.config.resample == "bicubic_offset"


# ---- DeiT and MAE


def test_mae_with_its_decoder(made: Callable, outputs: Callable, compare: Callable, tmp_path: Path) -> None:
    theirs = made(SMALL)
    decoder = {
        "mask_token": torch.ones(1, 1, 32),
        "decoder_embed.weight": torch.ones(32, 48),
        "decoder_pred.bias": torch.ones(5),
    }
    torch.save({"model": {**theirs.state_dict(), **decoder}}, tmp_path / "mae.pth")
    checkpoint = load(tmp_path / "mae.pth", heads=3)
    compare(checkpoint.model, images_of((64, 64)), *outputs(theirs, theirs.blocks, images_of((64, 64))))
    assert checkpoint.config.resample == "bicubic"
    assert any("left out: the mask token, and the decoder" in note for note in checkpoint.notes)


def test_deit_iii_has_its_own_name_for_layer_scale(
    made: Callable, outputs: Callable, compare: Callable, tmp_path
) -> None:
    theirs = made({**SMALL, "init_values": 1e-4, "no_embed_class": True, "num_classes": 10})
    state = {re.sub(r"ls(\d)\.gamma", r"gamma_\1", name): tensor for name, tensor in theirs.state_dict().items()}
    torch.save({"model": state}, tmp_path / "deit_3.pth")
    checkpoint = load(tmp_path / "deit_3.pth", heads=3)
    compare(checkpoint.model, images_of((64, 64)), *outputs(theirs, theirs.blocks, images_of((64, 64))))
    assert (checkpoint.config.cls_position, checkpoint.provenance["family"]) == ("none", "meta")


# ---- whose file it is, and what comes with it

WITH_HEAD = {**SMALL, "num_classes": 10}
MEAN = {**WITH_HEAD, "global_pool": "avg"}


@pytest.mark.parametrize(
    ("file", "arguments", "wrapper", "family", "resampling"),
    [
        ("dino.pth", SMALL, None, "meta", "bicubic_offset"),
        ("dino.pt", SMALL, "teacher", "meta", "bicubic_offset"),
        ("mae.pth", SMALL, "model", "meta", "bicubic"),
        ("mae_finetuned.pth", MEAN, "model", "meta", "bicubic"),
        ("deit.pth", WITH_HEAD, "model", "meta", "bicubic"),
        ("vit.pth", WITH_HEAD, None, "timm", "bicubic_antialias"),
        ("vit.pth", SMALL, "state_dict", "timm", "bicubic_antialias"),
        ("vit.pth", MEAN, None, "timm", "bicubic_antialias"),
        ("vit.pth", SMALL_14, None, "timm", "bicubic_antialias"),
        ("clip.pth", {**SMALL, "pre_norm": True}, None, "timm", "bicubic_antialias"),
        ("vit.safetensors", SMALL, None, "timm", "bicubic_antialias"),
    ],
)
def test_whose_file_it_is(
    file: str, arguments: dict, wrapper: str | None, family: str, resampling: str, made: Callable, tmp_path: Path
) -> None:
    state = made(arguments).state_dict()
    if file.endswith(".safetensors"):
        save_file(state, tmp_path / file)
    else:
        torch.save({wrapper: state} if wrapper else state, tmp_path / file)
    checkpoint = load(tmp_path / file, heads=3)
    assert (checkpoint.provenance["family"], checkpoint.config.resample) == (family, resampling)


def test_config_json_of_timms_settles_it(made: Callable, tmp_path: Path) -> None:
    torch.save(made(SMALL).state_dict(), tmp_path / "pytorch_model.pth")
    (tmp_path / "config.json").write_text('{"architecture": "vit_small_patch16_224", "model_args": {"num_heads": 3}}')
    assert load(tmp_path).provenance["family"] == "timm"


def test_the_caller_settles_it(made: Callable, tmp_path: Path) -> None:
    torch.save(made(SMALL).state_dict(), tmp_path / "vit.pth")
    assert load(tmp_path / "vit.pth", heads=3, family="timm").config.resample == "bicubic_antialias"
    torch.save(made(SMALL_14).state_dict(), tmp_path / "vit.pth")
    assert load(tmp_path / "vit.pth", heads=3, family="meta").config.resample == "bicubic_offset"


def test_what_comes_with_dinov2(made: Callable, tmp_path: Path) -> None:
    torch.save(dinov2_state(made({**SMALL_14, "img_size": 518})), tmp_path / "dinov2.pth")
    checkpoint = load(tmp_path / "dinov2.pth", heads=3)
    config, preprocessing = checkpoint.config, checkpoint.preprocessing
    assert (config.image_size, config.norm_eps, config.classes, checkpoint.task) == ((518, 518), 1e-6, 0, "embed")
    assert config.layer_scale is not None
    assert (preprocessing.mean, preprocessing.std) == IMAGENET
    assert (preprocessing.size, preprocessing.crop_fraction) == ((224, 224), 0.875)
    assert (preprocessing.resize, preprocessing.interpolation) == ("crop", "bicubic")


def test_published_widths_tell_their_heads(made: Callable, tmp_path: Path) -> None:
    torch.save(made(wide(SMALL, 384)).state_dict(), tmp_path / "dino.pth")
    checkpoint = load(tmp_path / "dino.pth")
    assert checkpoint.config.heads == 6
    assert checkpoint.provenance["heads"] == "the published model of width 384; the file does not say"


def test_half_a_chunk_is_refused(made: Callable, tmp_path: Path) -> None:
    state = {n: t for n, t in dinov2_state(made(SMALL_14), chunks=3).items() if not n.startswith("blocks.1.")}
    torch.save(state, tmp_path / "dinov2.pth")
    with pytest.raises(VitrailError, match=r"numbered \[0, 2\]"):
        load(tmp_path / "dinov2.pth", heads=3)


@pytest.mark.parametrize("chunks", [0, 2])
def test_damaged_in_any_way(chunks: int, damaged: Callable) -> None:
    model = VisionTransformer(img_size=28, patch_size=7, embed_dim=24, depth=2, num_heads=3, num_classes=0)
    damaged(Source("it", "dinov2.pth", dinov2_state(model, chunks)))
