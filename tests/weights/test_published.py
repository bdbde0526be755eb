"""The table of published models against the libraries that publish them, and short names wherever a model is taken."""

from __future__ import annotations

import functools
import json
from pathlib import Path
from typing import Any

import pytest
import timm
import torch
import transformers
from timm.models import get_pretrained_cfg
from torch import nn

import vitrail
from vitrail.cli import main
from vitrail.errors import VitrailError
from vitrail.model.cost import parameters
from vitrail.weights.families import recognise
from vitrail.weights.published import PublishedModel, published_models
from vitrail.weights.source import Source

MODELS = list(published_models().values())
OF_TIMM = [model for model in MODELS if model.hub_id.startswith(("timm/", "belfner/"))]
COMMIT = "0123456789012345678901234567890123456789"

BASE = {"hidden_size": 768, "num_hidden_layers": 12, "num_attention_heads": 12, "intermediate_size": 3072}
LARGE = {"hidden_size": 1024, "num_hidden_layers": 24, "num_attention_heads": 16, "intermediate_size": 4096}
HUGE = {"hidden_size": 1280, "num_hidden_layers": 32, "num_attention_heads": 16, "intermediate_size": 5120}
CLIP, IJEPA = (
    (transformers.CLIPVisionConfig, transformers.CLIPVisionModel),
    (
        transformers.IJepaConfig,
        transformers.IJepaModel,
    ),
)
OF_TRANSFORMERS = {  # what stands in config.json of these repositories
    "clip-b32-openai": (*CLIP, {**BASE, "patch_size": 32}),
    "clip-b-openai": (*CLIP, {**BASE, "patch_size": 16}),
    "clip-l-openai": (*CLIP, {**LARGE, "patch_size": 14}),
    "ijepa-h": (*IJEPA, {**HUGE, "patch_size": 14}),
}


@functools.cache
def published_by_timm(hub_id: str, **changes: Any) -> nn.Module:
    """timm's network, without memory for its weights."""
    with torch.device("meta"):
        return timm.create_model(hub_id.split("/")[1], **changes)


def learns_key_bias(model: nn.Module) -> bool:
    """DINOv3 and EVA-02 have a bias for queries and values only."""
    learned = dict(model.named_parameters())
    return not any(f"blocks.0.attn.{name}" in learned for name in ("q_bias", "q_proj.bias"))


def count(model: nn.Module) -> int:
    """Without the token that stands for a masked patch in pretraining."""
    return sum(parameter.numel() for name, parameter in model.named_parameters() if not name.endswith("mask_token"))


def test_every_model_is_counted_by_a_library() -> None:
    assert {model.name for model in MODELS} == {model.name for model in OF_TIMM} | set(OF_TRANSFORMERS)
    assert len({model.hub_id for model in MODELS}) == len(MODELS) > 60


@pytest.mark.parametrize("model", OF_TIMM, ids=lambda model: model.name)
def test_id_licence_size_and_parameters_are_timms(model: PublishedModel) -> None:
    theirs = get_pretrained_cfg(model.hub_id.split("/")[1])
    assert theirs is not None and theirs.hf_hub_id == model.hub_id and theirs.hf_hub_filename is None
    assert theirs.license == model.licence.split(" ")[0].lower()
    assert theirs.input_size == (3, model.image_size, model.image_size)
    assert count(published_by_timm(model.hub_id, num_classes=0)) == model.parameters


@pytest.mark.parametrize("name", OF_TRANSFORMERS)
def test_parameters_are_those_of_transformers_and_ours(name: str) -> None:
    config, network, sizes = OF_TRANSFORMERS[name]
    model = published_models()[name]
    with torch.device("meta"):
        theirs = network(config(**sizes, image_size=model.image_size))
    assert count(theirs) == model.parameters
    source = Source(model.hub_id, "model.safetensors", dict(theirs.state_dict()), config=theirs.config.to_dict())
    ours = recognise(source).convert(source, {}).config
    assert parameters(ours.replace(classes=0)) == model.parameters
    assert ours.image_size == (model.image_size, model.image_size)


def test_no_licence_forbids_commercial_use_without_saying_so() -> None:
    free = {"Apache-2.0", "MIT"}
    assert {model.licence for model in MODELS if model.commercial} == free
    assert {model.licence for model in MODELS if not model.commercial} == {"CC-BY-NC-4.0 (non-commercial)"}
    assert {model.family for model in MODELS if not model.commercial} == {"MAE", "I-JEPA"}


@pytest.mark.parametrize("model", OF_TIMM, ids=lambda model: model.name)
def test_our_network_of_it_has_as_many_parameters(model: PublishedModel, tmp_path: Path) -> None:
    """From the names and shapes of timm's tensors and the config.json that timm writes, without weights."""
    theirs = published_by_timm(model.hub_id)
    timm.models._hub.save_config_for_hf(theirs, tmp_path / "config.json")
    stored = json.loads((tmp_path / "config.json").read_text())
    source = Source(model.hub_id, "model.safetensors", dict(theirs.state_dict()), config=stored)
    config = recognise(source).convert(source, {}).config
    key_bias = 0 if learns_key_bias(theirs) else config.depth * config.width  # ours are there, and 0
    assert parameters(config.replace(classes=0)) == model.parameters + key_bias
    assert config.image_size == (model.image_size, model.image_size)


# ---- by its short name, from a cache that the test writes


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A hub cache with vit-ti-in1k and the non-commercial mae-b in small, and a hub that cannot be reached."""
    folder = tmp_path / "hub"
    for name, network in (("vit-ti-in1k", "vit_tiny_patch16_224"), ("mae-b", "vit_base_patch16_224")):
        repository = folder / f"models--{published_models()[name].hub_id.replace('/', '--')}"
        (repository / "snapshots" / COMMIT).mkdir(parents=True)
        (repository / "refs").mkdir()
        (repository / "refs" / "main").write_text(COMMIT)
        sizes = {"img_size": 32, "embed_dim": 48, "depth": 1, "num_heads": 3, "num_classes": 1000}
        theirs = timm.create_model(network, **sizes)
        timm.models.save_for_hf(theirs, repository / "snapshots" / COMMIT, model_args=sizes, safe_serialization=True)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(folder))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.chdir(tmp_path)
    return folder


def test_a_short_name_is_its_hub_id(cache: Path) -> None:
    loaded = vitrail.load("vit-ti-in1k")
    same = vitrail.load("timm/vit_tiny_patch16_224.augreg_in21k_ft_in1k")
    assert loaded.config == same.config and loaded.preprocessing == same.preprocessing
    assert all(torch.equal(a, b) for a, b in zip(loaded.model.parameters(), same.model.parameters(), strict=True))
    assert loaded.provenance["published"] == "vit-ti-in1k" and loaded.provenance["licence"] == "Apache-2.0"
    assert not any("licence" in note for note in loaded.notes)


def test_a_non_commercial_licence_goes_with_the_model(cache: Path) -> None:
    loaded = vitrail.load("mae-b", labels=["a", "b"])
    saved = vitrail.load(loaded.save("mine.safetensors"))
    assert any("non-commercial" in note for note in saved.notes)


def test_a_file_of_that_name_wins(cache: Path) -> None:
    vitrail.load("mu/16", classes=3, image_size=32).save("model.safetensors")
    Path("vit-ti-in1k").mkdir()
    Path("model.safetensors").rename("vit-ti-in1k/model.safetensors")
    assert vitrail.load("vit-ti-in1k").config.classes == 3


def test_commands_take_short_names(cache: Path, photo_folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    photo = str(next(photo_folder.rglob("*.png")))
    assert main(["info", "vit-ti-in1k"]) == 0
    assert main(["predict", "vit-ti-in1k", photo]) == 0
    assert main(["convert", "vit-ti-in1k", "ours.safetensors"]) == 0
    assert main(["explain", "vit-ti-in1k", photo, "--out", "why.html"]) == 0
    tuned = ["train", str(photo_folder), "--out", "run", "--from", "vit-ti-in1k", "--epochs", "1", "--batch-size", "8"]
    assert main([*tuned, "--image-size", "32"]) == 0
    assert "few to start from scratch" not in capsys.readouterr().out
    assert vitrail.load("run/model.safetensors").provenance["published"] == "vit-ti-in1k"


def test_a_run_from_scratch_ends_with_what_to_start_from(
    photo_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = ["train", str(photo_folder), "--out", str(tmp_path / "run"), "--model", "mu/16", "--epochs", "1"]
    assert main([*run, "--image-size", "80"]) == 0
    assert "photos are few to start from scratch: --from vit-ti" in capsys.readouterr().out.splitlines()[-1]


@pytest.fixture
def photo_folder(tmp_path: Path) -> Path:
    from tests.training.running import write_pictures

    return write_pictures(tmp_path / "photos", each=6, classes=("cat", "dog"), side=80)


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("dinov2-x", "dinov2-s"),
        ("DINOV2-S", "did you mean dinov2-s"),
        ("swim-t", "swin-t"),
        ("qqqq", "'vitrail models' lists"),
    ],
)
def test_an_unknown_name_is_met_with_close_ones(name: str, hint: str) -> None:
    with pytest.raises(VitrailError, match="there is no file, folder, preset or published model") as error:
        vitrail.load(name)
    assert hint in str(error.value) and "\n" not in str(error.value)


def test_a_published_name_is_no_preset(tmp_path: Path, photo_folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", str(photo_folder), "--out", str(tmp_path / "run"), "--model", "dinov2-s"]) == 2
    assert "start from it with --from" in capsys.readouterr().err


# ---- the command


def test_models_lists_all_and_finds_words(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["models"]) == 0
    listed = capsys.readouterr().out
    assert all(model.name in listed and model.hub_id in listed and model.licence in listed for model in MODELS)
    assert main(["models", "NON-commercial", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert {row["name"] for row in found} == {"mae-b", "mae-l", "mae-h", "ijepa-h"}
    assert set(found[0]) == {"name", "hub_id", "family", "parameters", "image_size", "pretraining", "licence", "use"}
    assert [model.name for model in vitrail.models("dinov2-s")] == ["dinov2-s", "dinov2-s-reg"]
    assert main(["models", "no such word"]) == 2
    assert main(["models", "no such word", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == []
