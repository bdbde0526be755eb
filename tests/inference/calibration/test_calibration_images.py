"""Where the pictures come from that an engine is checked on."""

from __future__ import annotations

import dataclasses
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from vitrail.dataset import Item
from vitrail.errors import VitrailError
from vitrail.inference.calibration.calibration_file import write_calibration
from vitrail.inference.calibration.calibration_images import calibration_images, spread_over_classes
from vitrail.inference.image_processor import ModelInput
from vitrail.model.presets import build_network, preset
from vitrail.weights.checkpoint import Checkpoint
from vitrail.weights.preprocessing import Preprocessing

AT_HAND = [ModelInput(np.full((16, 16, 3), value, np.uint8)) for value in (10, 20)]


@pytest.fixture(scope="module")
def checkpoint() -> Checkpoint:
    network = build_network(preset("mu/4", image_size=16, classes=2))
    return Checkpoint(network, Preprocessing(size=(16, 16)), provenance={"training": {"seed": 1, "sample": ["a"]}})


def test_first_the_folder_then_the_run_then_what_is_at_hand(tmp_path: Path, checkpoint: Checkpoint) -> None:
    model = tmp_path / "model.safetensors"
    model.touch()
    assert calibration_images(checkpoint, model, fallback=AT_HAND).source == "2 pictures at hand"
    write_calibration(tmp_path / "calibration.zip", AT_HAND[:1], checkpoint.provenance["training"])
    for path in (model, tmp_path):
        found = calibration_images(checkpoint, path, fallback=AT_HAND)
        assert found.source.startswith("1 training picture of") and len(found.images) == 1
    assert calibration_images(checkpoint, tmp_path / "dinov2-s", fallback=AT_HAND).source == "2 pictures at hand"
    folder = tmp_path / "photos" / "inner"
    folder.mkdir(parents=True)
    (folder / "broken.jpg").write_bytes(b"no picture")
    Image.fromarray(np.full((30, 20, 3), 77, np.uint8)).save(folder / "a.png")
    found = calibration_images(checkpoint, model, tmp_path / "photos", fallback=AT_HAND)
    assert found.source.startswith("1 picture of") and found.images[0].pixels.shape == (16, 16, 3)


def test_nothing_to_calibrate_on_is_said(tmp_path: Path, checkpoint: Checkpoint) -> None:
    with pytest.raises(VitrailError, match="give a folder of pictures"):
        calibration_images(checkpoint, tmp_path / "model.safetensors")
    with pytest.raises(VitrailError, match="holds no picture that can be read"):
        calibration_images(checkpoint, folder=tmp_path)
    with pytest.raises(VitrailError, match="is no folder"):
        calibration_images(checkpoint, folder=tmp_path / "missing")


def test_a_labelled_folder_says_what_is_true(tmp_path: Path, checkpoint: Checkpoint) -> None:
    for name, value in (("owl", 10), ("cat", 200)):
        for number in range(3):
            (tmp_path / name).mkdir(exist_ok=True)
            Image.fromarray(np.full((16, 16, 3), value, np.uint8)).save(tmp_path / name / f"{number}.png")
    labelled = dataclasses.replace(checkpoint, labels=["owl", "cat"])
    found = calibration_images(labelled, folder=tmp_path)
    assert found.source.startswith("6 labelled pictures of") and found.truths is not None
    assert [(int(image.pixels.mean()), truth) for image, truth in zip(found.images, found.truths, strict=True)].count(
        (200, 1)
    ) == 3
    others = dataclasses.replace(checkpoint, labels=["bird", "cat"])  # a folder that the model has no class for
    assert calibration_images(others, folder=tmp_path).truths is None


ITEMS = [Item(Path(f"{index}.png"), 0 if index < 95 else 1) for index in range(100)]


def test_rare_classes_have_their_share_and_the_seed_decides() -> None:
    chosen = spread_over_classes(ITEMS, 20, seed=0)
    assert Counter(ITEMS[index].target for index in chosen) == {0: 15, 1: 5} and len(set(chosen)) == 20
    assert chosen == spread_over_classes(ITEMS, 20, seed=0) != spread_over_classes(ITEMS, 20, seed=1)
    assert sorted(spread_over_classes(ITEMS[:3], 20, seed=0)) == [0, 1, 2]


def test_an_image_of_several_classes_stands_for_its_rarest() -> None:
    items = [Item(Path(f"{index}.png"), (0, 1) if index == 7 else (0,)) for index in range(50)]
    items += [Item(Path("numbers.png"), (0.5, 1.5))]
    assert {7, 50} <= set(spread_over_classes(items, 3, seed=0))
