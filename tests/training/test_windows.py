"""Attention windows through the whole of `train`: from scratch, for fine-tuning, in the file, and out of it again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import vitrail
from tests.training.running import write_pictures
from vitrail.cli import main
from vitrail.commands.make_data import make_data
from vitrail.errors import VitrailError
from vitrail.training.settings import Settings

SMALL: dict[str, Any] = {
    "model.width": 32,
    "model.depth": 3,
    "model.heads": 2,
    "model.patch_size": 8,
    "model.attention_window": 2,
    "train.batch_size": 16,
    "train.epochs": 1.0,
}


@pytest.fixture(scope="module")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_pictures(tmp_path_factory.mktemp("photos"), each=10, side=40)


def test_segmentation_in_windows(tmp_path: Path) -> None:
    data = tmp_path / "shapes"
    make_data("shapes", data, images=48, size=48)
    finished = vitrail.train(data, tmp_path / "run", task="segment", settings=Settings().with_values(SMALL))
    loaded = vitrail.load(finished.folder.model)
    assert loaded.config.block_windows == (2, 2, 0) and loaded.config.image_size == (48, 48)
    assert set(finished.results["metrics"]) >= {"mIoU"}
    photo = finished.items[0].path
    assert loaded.predict(photo)["mask"].ndim == 2
    assert main(["explain", str(finished.folder.model), str(photo), "--out", str(tmp_path / "why.html")]) == 0


def test_a_classifier_keeps_all_patches_and_gets_windows_when_it_is_tuned(pictures: Path, tmp_path: Path) -> None:
    finished = vitrail.train(pictures, tmp_path / "run", settings=Settings().with_values(SMALL))
    assert finished.settings.train.keep_tokens == 1.0
    plain = Settings().with_values({**SMALL, "model.attention_window": 0})
    full = vitrail.train(pictures, tmp_path / "full", settings=plain)
    assert full.checkpoint.config.block_windows == (0, 0, 0) and full.settings.train.keep_tokens == 0.5
    tuned = {"model.start": str(full.folder.model), "model.attention_window": 3, "model.global_blocks": 0}
    settings = Settings().with_values({**tuned, "train.epochs": 1.0, "train.batch_size": 8})
    again = vitrail.train(pictures, tmp_path / "tuned", settings=settings)
    assert again.checkpoint.config.block_windows == (3, 3, 3)
    assert vitrail.load(again.folder.model).config.block_windows == (3, 3, 3)
    # unset, a model that is fine-tuned keeps what it has
    third = Settings().with_values({"model.start": str(again.folder.model), "train.epochs": 1.0})
    assert vitrail.train(pictures, tmp_path / "third", settings=third).checkpoint.config.attention_window == 3


def test_windows_need_all_patches(pictures: Path, tmp_path: Path) -> None:
    settings = Settings().with_values({**SMALL, "train.keep_tokens": 0.5})
    with pytest.raises(VitrailError, match="attention_window needs all patches: set train.keep_tokens to 1"):
        vitrail.train(pictures, tmp_path / "run", settings=settings)


def test_convert_gives_a_model_windows_and_other_libraries_none(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    full = vitrail.load("mu/16", image_size=64, depth=3, classes=2)
    full.save(tmp_path / "full.safetensors")
    source, windowed = str(tmp_path / "full.safetensors"), str(tmp_path / "windowed.safetensors")
    assert main(["convert", source, windowed, "--attention-window", "2"]) == 0
    loaded = vitrail.load(windowed)
    assert loaded.config.block_windows == (2, 2, 0)
    assert all(torch.equal(a, b) for a, b in zip(full.model.parameters(), loaded.model.parameters(), strict=True))
    for library in ("timm", "transformers"):
        assert main(["convert", windowed, str(tmp_path / library), "--to", library]) == 2
        assert "attention_window 2 cannot be written" in capsys.readouterr().err
    capsys.readouterr()
    assert main(["info", windowed]) == 0
    shown = capsys.readouterr().out
    assert "windows of 2 x 2 patches" in shown and "289 entries per head" in shown  # 17 x 17
