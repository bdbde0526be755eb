"""`predict --out` for images of any number of channels."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from vitrail.commands.predict import run_predict


@pytest.mark.parametrize("channels", [1, 2, 5])
def test_masks_of_images_of_any_number_of_channels(
    save: Callable[..., Path], tmp_path: Path, channels: int, capsys: pytest.CaptureFixture[str]
) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (40, 48, channels), np.uint8)
    np.save(tmp_path / "picture.npy", pixels)
    model = save(task="segment", head="mask_linear", channels=channels)
    assert run_predict(str(model), [str(tmp_path / "picture.npy")], out=str(tmp_path / "out")) == 0, capsys.readouterr()
    masks = [path for path in (tmp_path / "out").glob("picture*.png") if Image.open(path).size == (48, 40)]
    assert masks
