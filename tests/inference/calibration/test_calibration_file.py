"""The pictures that travel with a run come back as the model takes them, whatever the channels and the task."""

from __future__ import annotations

import io
import json
import math
import zipfile
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from vitrail.data.loading.transforms import letterbox_of
from vitrail.errors import VitrailError
from vitrail.inference.calibration.calibration_file import count_calibration, read_calibration, write_calibration
from vitrail.inference.image_processor import ImageProcessor, ModelInput
from vitrail.weights.preprocessing import Preprocessing

RUN = {"seed": 3, "sample": ["ab", "cd"]}


def smooth(height: int, width: int, channels: int) -> np.ndarray:
    """A picture that JPEG keeps: every channel another ramp."""
    down, across = np.meshgrid(np.linspace(0, 200, height), np.linspace(0, 50, width), indexing="ij")
    return np.stack([down + across if c % 2 else 250 - down - across for c in range(channels)], 2).astype(np.uint8)


@pytest.mark.parametrize("channels", [1, 2, 3, 4, 7])
def test_pixels_come_back_for_any_number_of_channels(tmp_path: Path, channels: int) -> None:
    pixels = smooth(24, 40, channels)
    preprocessing = Preprocessing(size=(24, 40), mean=(0.5,) * channels, std=(0.5,) * channels)
    write_calibration(tmp_path / "c.zip", [ModelInput(pixels), ModelInput(pixels[::-1].copy())], RUN)
    first, second = read_calibration(tmp_path / "c.zip", preprocessing, RUN)
    allowed = 5 if channels in (1, 3) else 0  # JPEG is not exact, PNG is
    assert np.abs(first.pixels.astype(int) - pixels).max() <= allowed
    assert np.abs(second.pixels.astype(int) - pixels[::-1]).max() <= allowed
    assert first.letterbox is None and count_calibration(tmp_path / "c.zip") == 2


def test_a_dense_task_gets_the_picture_without_its_margins(tmp_path: Path) -> None:
    preprocessing = Preprocessing(size=(32, 32), resize="pad")
    image = ImageProcessor(preprocessing, dense=True).read(smooth(60, 120, 3))
    write_calibration(tmp_path / "c.zip", [image], RUN)
    (read,) = read_calibration(tmp_path / "c.zip", preprocessing, RUN)
    assert read.letterbox is not None and read.letterbox.own == (16, 32)
    assert read.letterbox.inside == letterbox_of((60, 120), preprocessing).inside == (8, 0, 24, 32)


def test_a_model_for_windows_gets_a_picture_of_one_window(tmp_path: Path) -> None:
    preprocessing = Preprocessing(size=(32, 32), resize="window")
    write_calibration(tmp_path / "c.zip", [ImageProcessor(preprocessing, dense=True).read(smooth(60, 120, 3))], RUN)
    (read,) = read_calibration(tmp_path / "c.zip", preprocessing, RUN)
    assert read.whole is not None and read.whole.shape == read.pixels.shape == (32, 32, 3)


def test_a_model_adapted_to_another_size_gets_that_size(tmp_path: Path) -> None:
    preprocessing = Preprocessing(size=(32, 32), resize="pad")
    write_calibration(tmp_path / "c.zip", [ImageProcessor(preprocessing, dense=True).read(smooth(60, 120, 3))], RUN)
    (read,) = read_calibration(tmp_path / "c.zip", preprocessing.replace(size=(64, 64)), RUN)
    assert read.pixels.shape == (64, 64, 3)
    assert read.letterbox is not None and read.letterbox.inside == (16, 0, 48, 64)


def test_another_models_pictures_are_refused(tmp_path: Path) -> None:
    write_calibration(tmp_path / "c.zip", [ModelInput(smooth(8, 8, 3))], RUN)
    with pytest.raises(VitrailError, match=r"c\.zip is that of another model"):
        read_calibration(tmp_path / "c.zip", Preprocessing(size=(8, 8)), RUN | {"seed": 4})
    assert len(read_calibration(tmp_path / "c.zip", Preprocessing(size=(8, 8)), None)) == 1


@pytest.mark.parametrize("inside", [[0, 0, 10**9, 10**9], [-9, 0, 8, 8], [8, 0, 0, 8], [0, 0, math.inf, 8]])
def test_a_place_outside_of_the_picture_is_damage(tmp_path: Path, inside: list[float]) -> None:
    path = tmp_path / "c.zip"
    write_calibration(path, [ModelInput(smooth(8, 8, 3))], RUN)
    with zipfile.ZipFile(path) as archive:
        picture = archive.read("001.jpg")
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("calibration.json", json.dumps({"run": "", "insides": [inside]}))
        archive.writestr("001.jpg", picture)
    with pytest.raises(VitrailError, match=r"c\.zip is damaged"):
        read_calibration(path, Preprocessing(size=(8, 8), resize="pad"), None)


@pytest.mark.parametrize("bits", [{8: 1}, {8: 0x20}, {6: 99}, {22: 1, 26: 1}])  # encrypted, patched, later, cut short
def test_an_archive_of_a_later_kind_is_damage(tmp_path: Path, bits: dict[int, int]) -> None:
    path = tmp_path / "c.zip"
    write_calibration(path, [ModelInput(smooth(8, 8, 3))], RUN)
    data = bytearray(path.read_bytes())
    for place, byte in bits.items():
        data[data.index(b"PK\1\2") + place] |= byte
    path.write_bytes(data)
    with pytest.raises(VitrailError, match=r"c\.zip is damaged"):
        read_calibration(path, Preprocessing(size=(8, 8)), None)
    assert count_calibration(path) in (1, None)


def test_pictures_far_larger_than_their_file_are_damage(tmp_path: Path) -> None:
    path, large = tmp_path / "c.zip", io.BytesIO()
    Image.new("1", (12_000, 3000)).save(large, "PNG", compress_level=9)
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("calibration.json", json.dumps({"run": "", "insides": [None] * 2}))
        archive.writestr("001.png", large.getvalue())
        archive.writestr("002.png", large.getvalue())
    assert path.stat().st_size < 20_000
    with pytest.raises(VitrailError, match=r"c\.zip is damaged"):
        read_calibration(path, Preprocessing(size=(8, 8), mean=(0.5,) * 2, std=(0.5,) * 2), None)


@pytest.mark.parametrize("damage", ["cut", "text", "no index", "index", "swollen", "picture"])
def test_a_damaged_file_is_named(tmp_path: Path, damage: str) -> None:
    path, pixels = tmp_path / "c.zip", smooth(8, 8, 3)
    write_calibration(path, [ModelInput(pixels)], RUN)
    if damage == "cut":
        path.write_bytes(path.read_bytes()[:-40])
    elif damage == "text":
        path.write_text("no zip")
    else:
        index = {"index": "[" * 5000}.get(damage, json.dumps({"run": "", "insides": [None]}))
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED if damage == "swollen" else zipfile.ZIP_STORED) as archive:
            archive.writestr("001.jpg", b"no picture" if damage == "picture" else bytes(100))
            if damage != "no index":
                archive.writestr("calibration.json", index)
    with pytest.raises(VitrailError, match=r"c\.zip is damaged"):
        read_calibration(path, Preprocessing(size=(8, 8)), RUN)
