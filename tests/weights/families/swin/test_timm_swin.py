"""timm's Swins in and out, against timm itself, on weights in which every parameter matters."""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import timm
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from vitrail.commands.convert import convert
from vitrail.errors import VitrailError
from vitrail.model.presets import build_network, preset
from vitrail.weights.checkpoint import Checkpoint
from vitrail.weights.families.swin import timm_swin as family
from vitrail.weights.load import load
from vitrail.weights.preprocessing import IMAGENET, Preprocessing
from vitrail.weights.source import Source

V1, V2 = "swin_tiny_patch4_window7_224", "swinv2_tiny_window8_256"
SMALL = {"img_size": 64, "embed_dim": 12, "depths": [2, 2, 2], "num_heads": [1, 2, 3], "num_classes": 10}
WIDE = {"depths": [1, 2, 1, 1], "num_classes": 10, "img_size": 64}  # real width, few blocks
CASES: list[tuple[str, dict[str, Any]]] = [
    (V1, {**SMALL, "window_size": 4}),
    (V1, {**SMALL, "window_size": 7, "qkv_bias": False}),  # larger than the last grids
    (V1, {**SMALL, "window_size": 4, "num_classes": 0, "in_chans": 4, "mlp_ratio": 2.0}),
    (V2, {**SMALL, "window_size": 4}),
    (V2, {**SMALL, "window_size": 8, "pretrained_window_sizes": [6, 6, 6], "qkv_bias": False}),
    (V1, WIDE),
    (V2, WIDE),
]
# native, another, and one that neither windows nor merging divide, but by which timm's own windows stay the same
SIZES = {3: [(64, 64), (96, 96), (148, 164)], 4: [(64, 64), (96, 96), (296, 332)]}  # by the number of stages


@pytest.fixture
def folder(tmp_path: Path, randomise: Callable) -> Callable[..., tuple[Path, nn.Module]]:
    """A random model of an architecture, and the folder timm itself makes of it."""

    def make(architecture: str, arguments: dict[str, Any]) -> tuple[Path, nn.Module]:
        model = randomise(timm.create_model(architecture, **arguments, strict_img_size=False))
        timm.models.save_for_hf(model, tmp_path, model_args=arguments, safe_serialization=True)
        return tmp_path, model

    return make


def blocks_of(model: nn.Module) -> list[nn.Module]:
    return [block for stage in model.layers for block in stage.blocks]


def answers_at(model: nn.Module, size: tuple[int, int], window: int, channels: int, outputs: Callable) -> Any:
    """timm's answer at a size as it is meant to be given: with its windows set for it. Blocks as (B, N, D)."""
    images = torch.randn(1, channels, *size, generator=torch.Generator().manual_seed(1))
    model = copy.deepcopy(model)  # it resamples its own tables
    model.set_input_size(img_size=size, window_size=(window, window))
    answer, hidden = outputs(model, blocks_of(model), images)
    return images, answer, [block.flatten(1, 2) for block in hidden]


@pytest.mark.filterwarnings("ignore:Using a non-tuple sequence", "ignore:torch.searchsorted")
@pytest.mark.parametrize(("architecture", "arguments"), CASES, ids=str)
def test_outputs_and_every_block_agree_at_every_size(architecture, arguments, folder, outputs, compare):
    path, model = folder(architecture, arguments)
    checkpoint = load(path)
    window = arguments.get("window_size", 7 if architecture == V1 else 8)
    for size in SIZES[len(arguments["depths"])]:
        images, answer, hidden = answers_at(model, size, window, arguments.get("in_chans", 3), outputs)
        compare(checkpoint.model, images, answer, hidden)
    assert checkpoint.config.padding == "after_shift"


@pytest.mark.parametrize("name", ["swin-mu", "swinv2-mu"])
def test_what_is_written_loads_in_timm_and_comes_back(name, tmp_path, randomise, outputs, compare):
    config = preset(name, classes=3, image_size=(64, 96), padding="after_shift", channels=1)
    model = randomise(build_network(config))
    labels = ["cat", "dog", "owl"]
    checkpoint = Checkpoint(
        model, Preprocessing(size=(64, 96), mean=(0.5,), std=(0.5,), crop_offset="round"), labels=labels
    )
    checkpoint.save(tmp_path / "ours.safetensors")
    convert(tmp_path / "ours.safetensors", tmp_path / "theirs", to="timm")
    theirs = timm.create_model(f"local-dir:{tmp_path / 'theirs'}", pretrained=True).eval()
    images = torch.randn(2, 1, 64, 96)
    answer, hidden = outputs(theirs, blocks_of(theirs), images)
    compare(model, images, answer, [block.flatten(1, 2) for block in hidden])
    back = load(tmp_path / "theirs")
    assert (back.config, back.labels, back.preprocessing) == (config, labels, checkpoint.preprocessing)
    assert all(torch.equal(tensor, model.state_dict()[name]) for name, tensor in back.model.state_dict().items())


def as_microsoft(state: dict[str, Tensor]) -> dict[str, Tensor]:
    """timm's state dict under the names of Microsoft's own files: merging a stage earlier, a plain head, buffers."""
    old = {
        re.sub(r"layers\.(\d+)\.downsample", lambda m: f"layers.{int(m[1]) - 1}.downsample", n): t
        for n, t in state.items()
    }
    old = {name.replace("head.fc.", "head."): tensor for name, tensor in old.items()}
    old["layers.0.blocks.0.attn.relative_position_index"] = torch.zeros(16, 16, dtype=torch.long)
    old["layers.0.blocks.1.attn_mask"] = torch.zeros(4, 16, 16)
    return old


@pytest.mark.parametrize("architecture", [V1, V2])
def test_files_of_microsoft_are_read(architecture, tmp_path, randomise):
    arguments = {**SMALL, "window_size": 4}
    model = randomise(timm.create_model(architecture, **arguments))
    path = tmp_path / "swin_tiny_patch4_window4_128.pth"
    torch.save({"model": as_microsoft(model.state_dict())}, path)
    checkpoint = load(path)
    assert (checkpoint.config.window_size, checkpoint.config.image_size) == ((4, 4), (128, 128))
    assert (checkpoint.preprocessing.mean, checkpoint.provenance["family"]) == (IMAGENET[0], "timm-swin")
    images = torch.randn(1, 3, 64, 64)
    with torch.no_grad():
        torch.testing.assert_close(checkpoint.model(images), model(images), atol=1e-4, rtol=0)


@pytest.mark.parametrize("ours", [False, True], ids=["timm's file", "our file"])
def test_another_window_resamples_the_tables(ours, folder, outputs, tmp_path):
    path, model = folder(V1, {**SMALL, "window_size": 4})
    if ours:
        path, of_timm = tmp_path / "own.safetensors", path
        load(of_timm).save(path)
    checkpoint = load(path, window_size=8)
    assert checkpoint.config.window_size == (8, 8)
    words = "and the bias tables of its windows with it" if ours else "windows of 4 x 4 were resampled to 8 x 8"
    assert any(words in note for note in checkpoint.notes)
    images, answer, _ = answers_at(model, (64, 64), 8, 3, outputs)
    with torch.no_grad():
        torch.testing.assert_close(checkpoint.model(images), answer, atol=1e-4, rtol=0)


@pytest.mark.parametrize(
    ("name", "window", "size", "pretrained"),
    [
        ("swin_base_patch4_window12_384.ms_in22k", 12, 384, (0, 0, 0)),
        ("swinv2_base_window12to24_192to384.ms_in22k_ft_in1k", 24, 384, (12, 12, 12, 6)[:3]),
    ],
)
def test_a_published_name_tells_windows_and_size(name, window, size, pretrained):
    v2 = name.startswith("swinv2")
    model = timm.create_model(V2 if v2 else V1, **{**SMALL, "window_size": window, "img_size": size})
    stored = {"architecture": name.split(".")[0], "pretrained_cfg": {"input_size": [3, size, size], "crop_pct": 1.0}}
    if v2:
        stored["model_args"] = {"pretrained_window_sizes": list(pretrained)}
    config = family.convert(Source(name="x", file="x", tensors=dict(model.state_dict()), config=stored), {}).config
    assert (config.window_size, config.image_size) == ((window, window), (size, size))
    assert config.pretrained_windows == pretrained


def test_windows_that_nothing_tells_are_asked_for():
    model = timm.create_model(V2, **{**SMALL, "window_size": 4})
    source = Source(name="x", file="model", tensors=dict(model.state_dict()))
    with pytest.raises(VitrailError, match="load it with window_size=<number>"):
        family.convert(source, {})
    assert family.convert(source, {"window_size": 4}).config.window_size == (4, 4)


def test_windows_of_several_sizes_are_refused():
    model = timm.create_model("swin_s3_tiny_224", **{**SMALL, "depths": (1, 1, 1), "window_size": (4, 4, 8)})
    stored = {"architecture": "swin_s3_tiny_224", "model_args": {"window_size": [4, 4, 8], "img_size": 64}}
    with pytest.raises(VitrailError, match="windows of different sizes"):
        family.convert(Source(name="x", file="x", tensors=dict(model.state_dict()), config=stored), {})


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"activation": "quick_gelu"}, "activation 'quick_gelu' cannot be written for timm"),
        ({"norm_eps": 1e-6}, "norm_eps"),
    ],
)
def test_what_timm_cannot_be_is_refused(changes, message, tmp_path):
    model = build_network(preset("swin-mu", classes=3, **changes))
    with pytest.raises(VitrailError, match=message):
        family.write_folder(Checkpoint(model, Preprocessing(size=(64, 64))), tmp_path)


@pytest.mark.parametrize("architecture", [V1, V2])
def test_a_damaged_file_gives_a_sentence(architecture, folder, damaged):
    path, _ = folder(architecture, {**SMALL, "depths": [1, 1, 1], "window_size": 4})
    tensors = load_file(path / "model.safetensors")
    damaged(Source(name="x", file="x", tensors=tensors, config=json.loads((path / "config.json").read_text())))


def test_lightning_prefixes_are_stripped(folder, tmp_path):
    path, _ = folder(V1, {**SMALL, "window_size": 4})
    tensors = {f"model.net.{name}": tensor for name, tensor in load_file(path / "model.safetensors").items()}
    save_file(tensors, tmp_path / "wrapped.safetensors")
    assert load(tmp_path / "wrapped.safetensors").config.depths == (2, 2, 2)
