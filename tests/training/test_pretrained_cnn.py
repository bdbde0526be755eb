"""A CNN of timm as the stem: its features are timm's, the file carries it, frozen means frozen."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import timm
import torch
from safetensors.torch import save_file
from torch import nn

import vitrail
from tests.training.running import write_pictures
from vitrail.cli import main
from vitrail.errors import VitrailError
from vitrail.model.config import ViTConfig
from vitrail.model.cost import multiply_adds, parameters
from vitrail.model.timm_cnn import feature_maps
from vitrail.weights.pretrained_cnn import architecture_of, find_cnn

CNN = "test_resnet"  # timm's own tiny one
MEAN, STD = (0.1, 0.2, 0.3), (0.4, 0.5, 0.6)


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, nn.Module]:
    """A folder as timm writes it to the hub, and the network of it, with statistics of some images."""
    folder = tmp_path_factory.mktemp("cnn") / "anything"
    torch.manual_seed(0)
    model = timm.create_model(CNN, pretrained_cfg_overlay={"mean": MEAN, "std": STD}).train()
    with torch.no_grad():
        for _ in range(3):
            model(torch.randn(4, 3, 64, 64) * 2 + 1)
    timm.models.save_for_hf(model.eval(), folder, safe_serialization=True)
    return folder, model


@pytest.fixture(scope="module")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_pictures(tmp_path_factory.mktemp("photos"), each=8, side=64)


def tokens_of_timm(state: dict, images: torch.Tensor, stride: int) -> torch.Tensor:
    """(B, N, F): the cells of timm's map of this stride, row by row."""
    theirs = timm.create_model(CNN, features_only=True)
    theirs.load_state_dict({name: state[name] for name in theirs.state_dict()})
    with torch.no_grad():
        maps = theirs.eval()(images)
    return maps[theirs.feature_info.reduction().index(stride)].flatten(2).transpose(1, 2)


@pytest.mark.parametrize("stride", [8, 16])
def test_its_map_becomes_the_tokens(published: tuple[Path, nn.Module], stride: int, lively: Callable) -> None:
    folder, theirs = published
    found = find_cnn(str(folder))
    channels = feature_maps(CNN)[stride].channels
    config = ViTConfig(
        image_size=64, patch_size=stride, width=24, depth=1, heads=2, classes=3,
        stem="features", cnn=found.config_name, feature_channels=channels,
    )  # fmt: skip
    model = vitrail.ViT(config, found.build(stride, 3)).eval()
    images = torch.randn(2, 3, 64, 96)
    features = tokens_of_timm(theirs.state_dict(), images, stride)
    with torch.no_grad():
        expected = model.stem.projection(features)
        assert torch.allclose(model.patch_tokens(images), expected, atol=1e-5)
        assert model(images).shape == (2, 3)
    assert found.mean == MEAN and found.std == STD
    assert parameters(config) == sum(parameter.numel() for parameter in model.parameters())
    plain = ViTConfig(image_size=64, patch_size=stride, width=24, depth=1, heads=2, classes=3)
    assert multiply_adds(config) > multiply_adds(plain) - 64 * 64 * 3 * 24


def settings_file(folder: Path, cnn: object, freeze: bool, **more: object) -> str:
    lines = {"cnn": str(cnn), "freeze_cnn": freeze, "width": 16, "depth": 1, "heads": 2, **more}
    text = "[model]\n" + "\n".join(f"{name} = {json.dumps(value)}" for name, value in lines.items())
    (folder / "settings.toml").write_text(text + "\n[train]\nepochs = 2\nbatch_size = 8\n")
    return str(folder / "settings.toml")


@pytest.mark.parametrize("freeze", [True, False])
def test_a_run_from_a_cnn(
    freeze: bool, published: tuple[Path, nn.Module], pictures: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, theirs = published
    settings = settings_file(tmp_path, folder, freeze)
    assert main(["train", str(pictures), "--out", str(tmp_path / "run"), "--settings", settings]) == 0
    loaded = vitrail.load(tmp_path / "run" / "model.safetensors")
    assert (
        loaded.config.cnn == f"timm:{CNN}" and loaded.config.stem == "features" and loaded.config.patch_size == (8, 8)
    )
    assert loaded.preprocessing.mean == MEAN and loaded.preprocessing.std == STD
    before = theirs.state_dict()
    same = [
        torch.equal(tensor, before[name.removeprefix("stem.cnn.features.")])
        for name, tensor in loaded.model.state_dict().items()
        if name.startswith("stem.cnn.")
    ]
    assert same and (all(same) if freeze else not any(same[:2]))
    # nothing but the file is needed
    photo = str(next(pictures.rglob("*.png")))
    model = str(tmp_path / "run" / "model.safetensors")
    assert main(["predict", model, photo]) == 0
    assert main(["evaluate", model, str(pictures)]) == 0
    assert main(["info", model]) == 0
    assert f"cnn timm:{CNN}" in capsys.readouterr().out
    tuned = ["--from", model, "--epochs", "1", "--batch-size", "8"]
    assert main(["train", str(pictures), "--out", str(tmp_path / "tuned"), *tuned]) == 0
    assert main(["train", str(pictures), "--out", str(tmp_path / "no"), *tuned, "--cnn", str(folder)]) == 2


def test_a_name_of_timm_comes_from_the_hub(
    published: tuple[Path, nn.Module], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    commit = "0123456789012345678901234567890123456789"
    repository = tmp_path / "models--timm--test_resnet.r160_in1k"
    (repository / "snapshots").mkdir(parents=True)
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text(commit)
    (repository / "snapshots" / commit).symlink_to(published[0])
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    found = find_cnn("timm:test_resnet.r160_in1k")
    built = found.build(8, 1).state_dict()
    grey = published[1].conv1[0].weight.sum(1, keepdim=True)
    assert torch.allclose(built["features.conv1.0.weight"], grey)
    published_cfg = timm.models.get_pretrained_cfg("test_resnet.r160_in1k")
    assert found.mean == published_cfg.mean  # what timm publishes, whatever lies in the cache
    with pytest.raises(VitrailError, match="not in the hub's cache"):
        find_cnn("timm:resnet18.a1_in1k")
    with pytest.raises(VitrailError, match="publishes no weights called 'resnet18.nothing'"):
        find_cnn("timm:resnet18.nothing")


def test_what_is_no_cnn_is_met_with_a_sentence(published: tuple[Path, nn.Module], tmp_path: Path) -> None:
    for name, words in [
        ("timm:resnet1888", "timm has no architecture 'resnet1888': did you mean resnet18"),
        ("timm:hf-hub:someone/else", "no architecture"),
        ("nothing.safetensors", "give timm's name of weights"),
    ]:
        with pytest.raises(VitrailError, match=words):
            find_cnn(name)
    state = published[1].state_dict()
    save_file({"a": torch.zeros(1)}, tmp_path / f"{CNN}.r160_in1k.safetensors")
    with pytest.raises(VitrailError, match="lacks .* of the .* tensors of timm's test_resnet"):
        find_cnn(str(tmp_path / f"{CNN}.r160_in1k.safetensors"))
    save_file(state, tmp_path / "mine.safetensors")
    with pytest.raises(VitrailError, match="does not say which of timm's architectures"):
        find_cnn(str(tmp_path / "mine.safetensors"))
    save_file(state, tmp_path / f"{CNN}.safetensors")
    assert architecture_of(str(tmp_path / f"{CNN}.safetensors")) == CNN
    with pytest.raises(VitrailError, match="timm's convit_tiny gives no feature maps"):
        feature_maps("convit_tiny")
    with pytest.raises(VitrailError, match="feature maps of stride 2, 4, 8, 16, 32, none of 7"):
        find_cnn(str(tmp_path / f"{CNN}.safetensors")).build(7, 3)


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"stem": "conv"}, "leave out model.stem"),
        ({"cnn": ""}, "model.freeze_cnn needs a CNN"),
        ({"cnn": "", "freeze_cnn": False, "stem": "features"}, "model.stem = 'features' needs a CNN"),
        ({"patch_size": 7, "image_size": 63}, "none of 7"),
    ],
)
def test_settings_that_do_not_go_together(
    more: dict,
    words: str,
    published: tuple[Path, nn.Module],
    pictures: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture,
) -> None:
    settings = settings_file(tmp_path, **{"cnn": published[0], "freeze": True, **more})
    assert main(["train", str(pictures), "--out", str(tmp_path / "run"), "--settings", settings]) == 2
    assert words in capsys.readouterr().err


def test_without_timm_the_sentence_names_the_extra(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    config = ViTConfig(stem="features", cnn=f"timm:{CNN}", feature_channels=feature_maps(CNN)[16].channels, depth=1)
    path = vitrail.Checkpoint(vitrail.ViT(config), vitrail.load("mu/16").preprocessing).save(tmp_path / "m.safetensors")
    monkeypatch.setitem(sys.modules, "timm", None)
    with pytest.raises(VitrailError, match=r"m.safetensors cannot be loaded: .*pip install 'vitrail\[timm\]'"):
        vitrail.load(path)


def test_a_file_that_names_a_larger_cnn_is_refused_before_it_is_built(tmp_path: Path) -> None:
    """What a file says is not believed further than it is long."""
    from vitrail.weights.checkpoint import check_size

    config = ViTConfig(stem="features", cnn="timm:convnext_xxlarge", feature_channels=1, depth=1, width=6)
    with pytest.raises(VitrailError, match="parameters, but it holds only"):
        check_size({"a": torch.zeros(10)}, config)
