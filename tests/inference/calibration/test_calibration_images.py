"""Where the pictures come from that an engine is checked on."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from vitrail.errors import VitrailError
from vitrail.inference.calibration.calibration_file import write_calibration
from vitrail.inference.calibration.calibration_images import calibration_images
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
    assert calibration_images(checkpoint, model, fallback=AT_HAND).source == "2 pictures at hand"
    write_calibration(tmp_path / "calibration.zip", AT_HAND[:1], checkpoint.provenance["training"])
    for path in (model, tmp_path):
        found = calibration_images(checkpoint, path, fallback=AT_HAND)
        assert found.source.startswith("1 training picture of") and len(found.images) == 1
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
