"""A run keeps some of its training pictures: which, and that they do not change the run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np

from tests.training.running import vitrail
from vitrail.dataset import Item
from vitrail.inference.calibration.calibration_images import calibration_images
from vitrail.training.stages.keep_calibration import spread_over_classes
from vitrail.weights.load import load

ITEMS = [Item(Path(f"{index}.png"), 0 if index < 95 else 1) for index in range(100)]


def test_rare_classes_have_their_share_and_the_seed_decides() -> None:
    chosen = spread_over_classes(ITEMS, 20, seed=0)
    assert Counter(item.target for item in chosen) == {0: 15, 1: 5} and len(set(chosen)) == 20
    assert chosen == spread_over_classes(ITEMS, 20, seed=0) != spread_over_classes(ITEMS, 20, seed=1)
    assert spread_over_classes(ITEMS[:3], 20, seed=0) != [] and len(spread_over_classes(ITEMS[:3], 20, seed=0)) == 3


def test_an_image_of_several_classes_stands_for_its_rarest() -> None:
    items = [Item(Path(f"{index}.png"), (0, 1) if index == 7 else (0,)) for index in range(50)]
    items += [Item(Path("numbers.png"), (0.5, 1.5))]
    chosen = spread_over_classes(items, 3, seed=0)
    assert {item.path.name for item in chosen} >= {"7.png", "numbers.png"}


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
