"""`vitrail info`: what it says of a preset and of a file, for people and for programs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from vitrail.cli import main
from vitrail.errors import VitrailError
from vitrail.inference.output.summary import CONFIG_LINES, describe, patch_size_variants, to_text
from vitrail.model.config import ViTConfig
from vitrail.model.cost import cost
from vitrail.model.presets import preset
from vitrail.model.swin.swin_config import SwinConfig
from vitrail.model.vit import ViT
from vitrail.weights.checkpoint import Checkpoint
from vitrail.weights.preprocessing import Preprocessing


@pytest.fixture
def model_file(tmp_path: Path) -> Path:
    config = preset("mu/8", image_size=32, classes=6)
    labels = ["ant", "bee", "cat", "dog", "eel", "fox"]
    checkpoint = Checkpoint(ViT(config), Preprocessing(size=(32, 32)), "classify", labels, {"source": "a test"})
    return checkpoint.save(tmp_path / "model.safetensors")


def test_json_of_a_preset(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["info", "S/16", "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert list(shown) == [
        "source",
        "kind",
        "summary",
        "config",
        "cost",
        "patch_sizes",
        "engines",
        "int8",
        "checkpoint",
        "calibration_images",
    ]
    assert (shown["source"], shown["kind"], shown["checkpoint"]) == ("S/16", "preset", None)
    assert ViTConfig.from_dict(shown["config"]) == preset("S/16")
    assert shown["cost"] == cost(preset("S/16")).to_dict()
    assert shown["cost"]["parameters"] == 22_050_664
    assert [row["patch_size"][0] for row in shown["patch_sizes"]] == [8, 14, 16, 32]
    assert "measured" not in shown["patch_sizes"][0]


def test_the_row_of_the_model_itself_is_its_cost() -> None:
    shown = describe("Ti/16", image_size=(224, 448))
    assert shown["config"]["image_size"] == [224, 448]
    own = next(row for row in shown["patch_sizes"] if row["patch_size"] == [16, 16])
    assert {**own, "patch_size": None} == {**shown["cost"], "patch_size": None}


def test_smaller_patches_cost_more_tokens_and_attention() -> None:
    rows = describe("S/16")["patch_sizes"]
    for name in ("tokens", "multiply_adds", "attention_entries", "activation_bytes"):
        values = [row[name] for row in rows]
        assert values == sorted(values, reverse=True), name


def test_patch_sizes_that_divide_the_image_and_the_models_own() -> None:
    sides = [c.patch_size for c in patch_size_variants(preset("S/16", image_size=96))]
    assert sides == [(8, 8), (16, 16), (32, 32)]
    sides = [c.patch_size for c in patch_size_variants(preset("mu/16", image_size=(50, 40), patch_size=(10, 20)))]
    assert sides == [(10, 20)]


def test_text_of_a_preset() -> None:
    text = to_text(describe("S/16"))
    for part in ("22,050,664", "197 = 14 x 14 patches + 1 before them", "4,598,882,304", "38,809", "88.2 MB weights"):
        assert part in text
    assert max(map(len, text.splitlines())) <= 120
    table = text[text.index("patch sizes for") :].splitlines()[1:]
    assert len({len(line) for line in table}) == 1, "the columns are aligned"
    assert [line.split()[0] for line in table] == ["patch", "8", "14", "*", "32"]


def test_the_text_shows_every_field_of_the_config() -> None:
    fields = {*ViTConfig.fields(), *SwinConfig.fields()} - {"network"}  # which the first line tells
    assert sorted(name for names in CONFIG_LINES.values() for name in names) == sorted(fields)


@pytest.mark.parametrize("name", ["swin-T", "swinv2-L"])
def test_text_of_a_swin(name: str) -> None:
    text = to_text(describe(name))
    for part in (f"{name}: a preset, Swin v", "depths (2 2 ", "window_size", "in windows of", "times as many"):
        assert part in text
    assert max(map(len, text.splitlines())) <= 120


def test_a_size_the_patches_do_not_divide_is_one_sentence() -> None:
    with pytest.raises(VitrailError, match="height 200, which patch_size 16 does not divide"):
        describe("S/16", image_size=(200, 224))


@pytest.mark.parametrize("source", ["S16", "nowhere.safetensors", "folder/of/nothing"])
def test_a_source_that_is_not_there(source: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["info", source]) == 2
    assert source in capsys.readouterr().err


def test_text_of_a_file(model_file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["info", str(model_file)]) == 0
    text = capsys.readouterr().out
    for part in (
        "a model file",
        "classify",
        "6: ant, bee, cat, dog, eel, ...",
        "interpolation bicubic",
        "source a test",
    ):
        assert part in text


def test_json_of_a_file(model_file: Path) -> None:
    shown = json.loads(json.dumps(describe(str(model_file))))
    assert shown["kind"] == "file"
    assert shown["checkpoint"]["labels"][2] == "cat"
    assert shown["checkpoint"]["task"] == "classify"
    assert Preprocessing.from_dict(shown["checkpoint"]["preprocessing"]) == Preprocessing(size=(32, 32))
    assert ViTConfig.from_dict(shown["config"]).classes == 6


def test_another_size_for_a_file_keeps_its_parameters(model_file: Path) -> None:
    home, away = describe(str(model_file)), describe(str(model_file), image_size=(64, 32))
    assert away["cost"]["parameters"] == home["cost"]["parameters"]
    assert away["cost"]["grid"] == [8, 4]
    assert away["config"] == home["config"]


def test_measure_runs_every_row_here() -> None:
    shown = describe("mu/16", image_size=(32, 32), measure=True)
    for row in shown["patch_sizes"]:
        assert row["measured"]["seconds"] > 0
        assert row["measured"]["peak_bytes"] >= row["measured"]["baseline_bytes"] > 0
    text = to_text(shown)
    assert "measured here" in text and "peak memory" in text


def test_a_row_that_cannot_run_is_named_and_the_others_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    good = {"seconds": 2.5, "peak_bytes": 3 * 10**9, "baseline_bytes": 2 * 10**8, "runs": 1, "threads": 2}

    def measure(config: ViTConfig) -> dict:
        return {"error": "out of memory"} if config.patch_size == (8, 8) else good

    monkeypatch.setattr("vitrail.inference.output.summary.measure_forward", measure)
    text = to_text(describe("S/16", measure=True))
    assert "patch 8 x 8 failed: out of memory" in text
    assert "2.50 s" in text and "3.00 GB" in text


def test_a_process_that_fails_to_measure_says_why() -> None:
    from vitrail.inference.profiling import measure

    huge = preset("mu/16", image_size=16, width=2**40, mlp_width=1)  # no machine holds this
    assert "error" in measure(huge)
    with pytest.raises(VitrailError, match="your own CNN"):
        measure(preset("mu/16", stem="features", feature_channels=8))
