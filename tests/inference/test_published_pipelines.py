"""A user who comes from timm or transformers gets the same answers: files, photos and processors as they have them."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image
from torch import Tensor

import vitrail
from vitrail.data.loading import transforms
from vitrail.inference import read_source as reading
from vitrail.model.presets import preset
from vitrail.model.vit import ViT
from vitrail.weights.checkpoint import Checkpoint
from vitrail.weights.families.transformers_folder import preprocessor_json
from vitrail.weights.preprocessing import Preprocessing, notes_on_offset

SIZES = [(500, 375), (375, 500), (333, 251), (97, 64), (640, 427), (200, 200), (51, 301)]  # width, height
CLASSES = 7


def randomised(model: torch.nn.Module) -> torch.nn.Module:
    """Random weights with which pictures differ in their answers by far more than rounding."""
    torch.manual_seed(0)
    for parameter in model.parameters():
        parameter.data = parameter.data + 0.1 * torch.randn(parameter.shape)
    return model.eval()


@pytest.fixture
def jpegs(tmp_path: Path, picture: Callable[..., Image.Image]) -> list[Path]:
    """Photos of odd sizes: several are large enough for a reduced decode, several crop an odd number of pixels."""
    paths = []
    for seed, (width, height) in enumerate(SIZES):
        grain = Image.effect_noise((width, height), 60).convert("RGB")
        paths.append(tmp_path / f"{seed}.jpg")
        Image.blend(picture(seed, (height, width)), grain, 0.3).save(paths[-1], quality=90)
    return paths


def opened(path: Path) -> Image.Image:
    return Image.open(path).convert("RGB")


def probabilities(model: Any, jpegs: list[Path], **options: Any) -> Tensor:
    return model.outputs(jpegs, **options).softmax(-1)


def timm_folder(folder: Path, **stored: Any) -> tuple[torch.nn.Module, Path]:
    import timm
    from safetensors.torch import save_file

    model = randomised(timm.create_model("vit_tiny_patch16_224", img_size=64, depth=2, num_classes=CLASSES))
    folder.mkdir()
    save_file(model.state_dict(), folder / "model.safetensors")
    cfg = {"input_size": [3, 64, 64], "mean": [0.485, 0.456, 0.406], "std": [0.229, 0.224, 0.225], **stored}
    config = {"architecture": "vit_tiny_patch16_224", "num_classes": CLASSES, "pretrained_cfg": cfg}
    (folder / "config.json").write_text(json.dumps(config))
    return model, folder


def check_same(ours: Tensor, theirs: Tensor) -> None:
    assert torch.equal(ours.argmax(-1), theirs.argmax(-1))
    assert (ours - theirs).abs().max() <= 1e-4
    assert theirs.std(dim=0).max() > 0.01  # the photos differ in their answers


@pytest.mark.parametrize(("mode", "pct"), [("center", 0.9), ("center", 0.875), ("center", 1.0), ("squash", 0.95)])
def test_timms_pipeline(mode: str, pct: float, jpegs: list[Path], tmp_path: Path) -> None:
    from timm.data import create_transform

    stored = {"crop_pct": pct, "crop_mode": mode, "interpolation": "bicubic"}
    model, folder = timm_folder(tmp_path / "timm", **stored)
    pretrained = json.loads((folder / "config.json").read_text())["pretrained_cfg"]
    transform = create_transform(**{**pretrained, "input_size": (3, 64, 64)})
    with torch.no_grad():
        theirs = model(torch.stack([transform(opened(path)) for path in jpegs])).softmax(-1)
    check_same(probabilities(vitrail.load(folder), jpegs), theirs)


@pytest.mark.parametrize(
    ("processor", "settings"),
    [
        ("ViT", {"size": {"height": 64, "width": 64}}),
        ("DeiT", {"size": {"height": 73, "width": 73}, "crop_size": {"height": 64, "width": 64}}),
        ("DeiT", {"size": {"shortest_edge": 73}, "crop_size": {"height": 64, "width": 64}}),
        ("CLIP", {"size": {"shortest_edge": 64}, "crop_size": {"height": 64, "width": 64}}),
    ],
    ids=str,
)
def test_transformers_pipeline(processor: str, settings: dict[str, Any], jpegs: list[Path], tmp_path: Path) -> None:
    import transformers

    config = transformers.ViTConfig(
        image_size=64, hidden_size=48, num_hidden_layers=2, num_attention_heads=3, intermediate_size=96, num_labels=7
    )
    model = randomised(transformers.ViTForImageClassification(config))
    model.save_pretrained(tmp_path / "theirs")
    fast = getattr(transformers, f"{processor}ImageProcessor")(**settings)
    fast.save_pretrained(tmp_path / "theirs")
    on_pillow = transformers.AutoImageProcessor.from_pretrained(tmp_path / "theirs", backend="pil")
    with torch.no_grad():
        pixels = torch.cat([on_pillow(opened(path), return_tensors="pt")["pixel_values"] for path in jpegs])
        theirs = model(pixels).logits.softmax(-1)
    check_same(probabilities(vitrail.load(tmp_path / "theirs"), jpegs), theirs)


@pytest.mark.parametrize("mode", ["center", "squash"])
def test_a_conversion_keeps_the_size_before_the_crop(mode: str, tmp_path: Path) -> None:
    """64 / 0.9 is 71.1 and 64 / 0.95 is 67.4, 64 / 0.83 is 77.1, 64 / 0.84 is 76.2: always down."""
    for pct in (0.9, 0.95, 0.83, 0.84, 0.86):
        _, folder = timm_folder(tmp_path / f"timm{pct}", crop_pct=pct, crop_mode=mode)
        vitrail.convert(folder, tmp_path / f"theirs{pct}", to="transformers")
        before, after = (vitrail.load(where).preprocessing for where in (folder, tmp_path / f"theirs{pct}"))
        assert after.before_crop == before.before_crop == (int(64 / pct), int(64 / pct))
        assert (after.resize, after.size) == (before.resize, before.size)


@pytest.mark.parametrize("edge", [354, 248, 256, 73])
def test_a_conversion_to_timm_keeps_it_too(edge: int, lively: Callable[..., ViT], tmp_path: Path) -> None:

    preprocessing = Preprocessing(size=(64, 64), crop_fraction=64 / edge)
    Checkpoint(lively(preset("mu/8", image_size=64, classes=3)), preprocessing).save(tmp_path / "m.safetensors")
    vitrail.convert(tmp_path / "m.safetensors", tmp_path / "timm", to="timm")
    stored = json.loads((tmp_path / "timm" / "config.json").read_text())["pretrained_cfg"]
    assert math.floor(64 / stored["crop_pct"]) == edge
    assert vitrail.load(tmp_path / "timm").preprocessing.before_crop == (edge, edge)


@pytest.mark.parametrize(
    ("how", "to_transformers", "to_timm"),
    [
        ({"crop_offset": "round"}, True, False),
        ({}, False, True),
        ({"crop_offset": "round", "resize": "squash"}, False, False),
        ({"crop_offset": "round", "resize": "squash", "crop_fraction": 224 / 227}, True, False),  # 1.5 becomes 2, or 1
        ({"crop_offset": "round", "resize": "squash", "crop_fraction": 224 / 225}, False, False),  # 0.5 is 0 to both
        ({"resize": "pad"}, False, False),
    ],
    ids=str,
)
def test_a_conversion_says_that_the_offset_is_rounded_otherwise(
    how: dict[str, Any], to_transformers: bool, to_timm: bool
) -> None:
    preprocessing = Preprocessing(**how)
    assert bool(notes_on_offset(preprocessing, "transformers", "floor")) == to_transformers
    assert bool(notes_on_offset(preprocessing, "timm", "round")) == to_timm
    notes: list[str] = []
    preprocessor_json(preprocessing, notes)
    assert any("begin one pixel beside" in note for note in notes) == to_transformers


# ---- decoding


def test_jpegs_are_decoded_in_full_unless_asked_otherwise(
    save: Callable[..., Path], jpegs: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    targets: list[Any] = []
    read = reading.read_image
    monkeypatch.setattr(
        reading,
        "read_image",
        lambda *a, target=None, bits=None: targets.append(target) or read(*a, target=target, bits=bits),
    )
    model = vitrail.load(save())
    exact = model.outputs(jpegs)
    assert targets == [None] * len(jpegs)
    fast = model.outputs(jpegs, fast_decode=True)
    assert targets[len(jpegs) :] == [(40, 40)] * len(jpegs)
    assert (fast - exact).abs().max() > 1e-3  # otherwise this would show nothing
    whole = transforms.prepare(read(jpegs[0], 3), model.preprocessing)
    images = transforms.normalise(torch.from_numpy(whole)[None], model.preprocessing)
    with torch.no_grad():
        assert torch.allclose(model.model(images)[0], exact[0], atol=1e-5)


def test_the_option_reaches_predict(
    save: Callable[..., Path], jpegs: list[Path], capsys: pytest.CaptureFixture[str]
) -> None:
    from vitrail.cli import main

    def answers(*options: str) -> list[Any]:
        assert main(["predict", str(save()), *map(str, jpegs), "--json", "-", *options]) == 0
        return [json.loads(line) for line in capsys.readouterr().out.splitlines()]

    assert answers() != answers("--fast-decode")
