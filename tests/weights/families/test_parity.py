"""Every family against its library: answers and every block, at the native size, a larger one, one that is no square.

benchmarks/parity.py measures the same at the published width and depth.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest
import timm
import torch
from safetensors.torch import load_file, save_file
from timm.models._registry import _module_to_models
from timm.models.eva import checkpoint_filter_fn
from transformers import AutoModel, AutoModelForImageClassification

import vitrail
from benchmarks.parity import largest_differences
from benchmarks.peers.families import EVA_CLIP_FILE, EVA_FILE, PE_FILE, PEERS, Peer, timm_peer
from vitrail.errors import VitrailError
from vitrail.weights.families import recognise
from vitrail.weights.preprocessing import IMAGENET
from vitrail.weights.source import Source, read

OUTPUTS, HIDDEN = 1e-4, 1e-3  # largest differences allowed, float32
ONE_OF_EACH = list({peer.family: peer for peer in reversed(PEERS)}.values())


LARGEST = timm_peer("Perception Encoder", "vit_pe_core_gigantic_patch14_448", 14, 448)  # too large for the benchmark


@pytest.mark.parametrize("peer", [*PEERS, LARGEST], ids=str)
def test_small(peer: Peer, tmp_path: Path) -> None:
    built = peer.build("small", tmp_path)
    answer, block = largest_differences(built, built.sizes, batch=2)
    assert answer <= OUTPUTS and block <= HIDDEN


@pytest.mark.parametrize("peer", ONE_OF_EACH, ids=lambda peer: peer.family)
def test_of_real_width(peer: Peer, tmp_path: Path) -> None:
    built = peer.build("wide", tmp_path)
    answer, block = largest_differences(built, built.sizes)
    assert answer <= OUTPUTS and block <= HIDDEN


@pytest.mark.parametrize(
    "build", [PE_FILE, EVA_FILE, EVA_CLIP_FILE], ids=["Perception Encoder", "EVA-02", "EVA-02, CLIP"]
)
def test_publishers_files_have_the_names_that_timm_reads(build: Callable, tmp_path: Path) -> None:
    """They are written by us from timm's weights, so timm's own reader says whether they are as published."""
    built = build("small", tmp_path)
    model = timm.create_model(f"local-dir:{tmp_path / 'timm'}")
    model.load_state_dict(checkpoint_filter_fn(torch.load(built.path), model), strict=True)
    images = torch.randn(2, 3, *built.sizes[0])
    with torch.no_grad():
        assert torch.equal(model.eval()(images), built.run(images)[0])


# ---- what the files do not say, or say otherwise


def test_tips_is_not_normalised(tmp_path: Path) -> None:
    peer = next(peer for peer in PEERS if peer.family == "TIPS v2")
    checkpoint = vitrail.load(peer.build("small", tmp_path).path)
    found = checkpoint.preprocessing
    assert (found.mean, found.std) == ((0.0, 0.0, 0.0), (1.0, 1.0, 1.0))
    assert (found.resize, found.interpolation, found.size) == ("squash", "bilinear", (56, 56))
    (tmp_path / "preprocessor_config.json").write_text('{"image_processor_type": "Tipsv2ImageProcessor"}')
    named = vitrail.load(tmp_path).preprocessing
    assert named == found.replace(size=(448, 448))


def test_tips_beside_its_text_tower(tmp_path: Path) -> None:
    peer = next(peer for peer in PEERS if peer.family == "TIPS v2")
    alone = vitrail.load(peer.build("small", tmp_path).path)
    tensors = load_file(tmp_path / "model.safetensors")
    (tmp_path / "config.json").unlink()
    tower = {f"vision_encoder.{name}": tensor for name, tensor in tensors.items()}
    save_file({**tower, "text_encoder.ln_final.weight": torch.ones(3)}, tmp_path / "model.safetensors")
    checkpoint = vitrail.load(tmp_path, heads=3)
    assert checkpoint.provenance["family"] == "tips" and checkpoint.config == alone.config
    assert "the text tower was left out: Vitrail reads the image tower" in checkpoint.notes
    (tmp_path / "model.safetensors").unlink()
    torch.save(tensors, tmp_path / "tips.pth")  # one register: DINOv2 has four
    assert vitrail.load(tmp_path / "tips.pth", heads=3).preprocessing.mean == (0.0, 0.0, 0.0)


@pytest.mark.parametrize("classes", [0, 3])
def test_i_jepa_back_to_transformers(classes: int, tmp_path: Path) -> None:
    written = vitrail.convert(
        "mu/8", tmp_path / "theirs", to="transformers", classes=classes, pool="mean", cls_token=False, image_size=32
    )
    theirs = (AutoModelForImageClassification if classes else AutoModel).from_pretrained(tmp_path / "theirs").eval()
    images = torch.randn(2, 3, 32, 32)
    with torch.no_grad():
        output = theirs(images)
        answer = output.logits if classes else output.last_hidden_state.mean(1)
        assert (written.model(images) - answer).abs().max() <= 1e-5
    assert theirs.config.model_type == "ijepa"
    assert any("their mean is this model's answer" in note for note in written.notes) == (classes == 0)
    assert vitrail.load(tmp_path / "theirs").config.pool == "mean"


def test_i_jepa_of_meta(tmp_path: Path) -> None:
    built = timm_peer("I-JEPA", "vit_huge_patch14_gap_224", 14, 224, num_classes=0).build("small", tmp_path / "timm")
    state = {f"module.{name}": tensor for name, tensor in load_file(tmp_path / "timm" / "model.safetensors").items()}
    state = {name.replace("fc_norm", "norm"): tensor for name, tensor in state.items()}
    torch.save({"encoder": state, "predictor": {"module.x": torch.ones(2, 2)}, "epoch": 3}, tmp_path / "vith.pth.tar")
    checkpoint = vitrail.load(tmp_path / "vith.pth.tar", heads=3)
    assert (checkpoint.config.pool, checkpoint.config.cls_token) == ("mean", False)
    assert checkpoint.preprocessing.mean == IMAGENET[0]
    images = torch.randn(2, 3, 56, 56)
    with torch.no_grad():
        mine = checkpoint.model.features(images, blocks=[-1]).blocks[0]
        assert (mine - built.run(images)[1][-1]).abs().max() <= HIDDEN


@pytest.mark.parametrize("family", ["TIPS v2", "Perception Encoder", "EVA-02", "I-JEPA"])
def test_damaged_in_any_way(family: str, damaged: Callable, tmp_path: Path) -> None:
    peer = next(peer for peer in reversed(PEERS) if peer.family == family)
    damaged(read(peer.build("small", tmp_path).path, "it"))


@pytest.mark.parametrize("name", ["eva02_small_patch14_224", "vit_pe_core_base_patch16_224"])
def test_timms_names_without_its_config(name: str, tmp_path: Path) -> None:
    peer = next(peer for peer in PEERS if peer.name == name)
    with_config = vitrail.load(peer.build("small", tmp_path).path)
    (tmp_path / "config.json").unlink()
    without = vitrail.load(tmp_path, heads=3)
    assert without.config.rotary_too and without.config.pool == with_config.config.pool
    assert without.preprocessing.mean == with_config.preprocessing.mean
    native = with_config.config.replace(rotary_grid=without.config.rotary_grid)  # of PE the file does not tell it
    assert without.config == native


# ---- every architecture of timm's Eva and Beit, by shapes alone

REFUSED = r"eva02_enormous|_rope_(mixed_|ape_)*224"  # norms after its branches, other RoPE


@pytest.mark.parametrize(
    "architecture",
    sorted(name for name in _module_to_models["eva"] | _module_to_models["beit"] if "sapiens2" not in name),
)
def test_every_architecture_is_read_or_refused(architecture: str) -> None:
    with torch.device("meta"):
        theirs = timm.create_model(architecture, depth=1)
    stored = {"architecture": architecture, "global_pool": theirs.global_pool, "pretrained_cfg": theirs.pretrained_cfg}
    source = Source(architecture, "model.safetensors", theirs.state_dict(), config=json.loads(json.dumps(stored)))
    if re.search(REFUSED, architecture):
        with pytest.raises(VitrailError):
            recognise(source).convert(source, {})
        return
    foreign = recognise(source).convert(source, {})
    config, block, rope = foreign.config, theirs.blocks[0], getattr(theirs, "rope", None)
    assert (config.heads, config.norm_eps) == (block.attn.num_heads, block.norm1.eps)
    assert config.is_rotary == (rope is not None) and config.relative_bias == architecture.startswith("beit")
    if rope is not None:
        assert config.rotary_base == rope.temperature and config.rotary_start == rope.grid_offset
        assert config.rotary_grid == getattr(rope, "ref_feat_shape", None)
    if (pool := getattr(theirs, "attn_pool", None)) is not None:
        assert (config.pool, config.pool_heads) == ("attention", pool.num_heads)
    published = theirs.pretrained_cfg
    assert foreign.preprocessing.mean == tuple(published["mean"])
    assert foreign.preprocessing.size == tuple(published["input_size"][1:])
