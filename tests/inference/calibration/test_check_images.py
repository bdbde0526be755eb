"""Pictures that engines are checked on: of a folder, of the run, or at hand; none is no error."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from vitrail.errors import VitrailError
from vitrail.inference.calibration import check_images as module
from vitrail.inference.calibration.calibration_file import write_calibration
from vitrail.inference.calibration.check_images import check_images
from vitrail.inference.engine import Engine, open_model


def test_which_pictures(save: Callable[..., Path], photos: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = save(provenance={"training": {"seed": 0, "sample": ["a"]}})
    checkpoint = open_model(path)
    paths = sorted(photos.rglob("*.png"))
    assert check_images(checkpoint, path) is None and check_images(checkpoint, Path("dinov2-s"), []) is None
    found = check_images(checkpoint, path, [paths[0], "missing.jpg", b"no image", paths[1]])
    assert found is not None and (len(found.images), found.source) == (2, "2 pictures at hand")
    monkeypatch.setattr(module, "MOST_AT_HAND", 5)
    spread = check_images(checkpoint, None, paths)
    assert spread is not None and len(spread.images) == 4  # every third of twelve
    processor = Engine.open(checkpoint).processor
    assert np.array_equal(spread.images[1].pixels, processor.read(paths[3]).pixels)
    images = [processor.read(one) for one in paths[:3]]
    write_calibration(path.parent / "calibration.zip", images, checkpoint.provenance["training"])
    kept = check_images(checkpoint, path, paths)
    assert kept is not None and kept.source.startswith("3 training pictures of ")
    folder = check_images(checkpoint, path, photos / "cat")
    assert folder is not None and "6" in folder.source
    with pytest.raises(VitrailError, match="is no folder"):
        check_images(checkpoint, path, "nowhere")
