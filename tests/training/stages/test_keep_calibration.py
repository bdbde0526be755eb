"""A run keeps some of its training pictures: which, and that they do not change the run."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np

from tests.training.running import vitrail
from vitrail.inference.calibration.calibration_images import calibration_images
from vitrail.weights.load import load


def test_a_run_keeps_pictures_unless_told_not_to(tmp_path: Path, pictures: Path, tiny: Callable[..., Path]) -> None:
    kept, none = tmp_path / "kept", tmp_path / "none"
    settings = tiny()
    done = vitrail("train", pictures, "--out", kept, "--settings", settings, "--epochs", 1)
    assert done.returncode == 0, done.stderr
    settings.write_text(settings.read_text().replace("[data]\n", "[data]\ncalibration_images = 0\n"))
    vitrail("train", pictures, "--out", none, "--settings", settings, "--epochs", 1)
    assert not (none / "calibration.zip").exists()
    model = kept / "model.safetensors"
    checkpoint = load(model)
    found = calibration_images(checkpoint, model)
    count = checkpoint.provenance["training"]["images"]
    assert 30 < len(found.images) == count  # all of the few training images
    assert {int(np.argmax(image.pixels.mean((0, 1)))) for image in found.images} == {0, 1, 2}  # a colour for each class
    assert f"{count} training pictures in calibration.zip" in vitrail("info", model).stdout
    assert model.read_bytes() == (none / "model.safetensors").read_bytes()  # the run itself is the same
