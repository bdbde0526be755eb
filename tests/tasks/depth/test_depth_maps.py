"""Depth maps from files: formats, scale, unknown pixels, and what is refused."""

from __future__ import annotations

import io
import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from vitrail.data.checks.check_dataset import check_dataset
from vitrail.data.layouts.recognise import read_dataset
from vitrail.errors import VitrailError
from vitrail.images.unreadable import UnreadableImage
from vitrail.tasks.depth.depth_data import scene_depth
from vitrail.tasks.depth.depth_maps import DepthScale, load_depth, read_scale, to_depth
from vitrail.tasks.shared.scene import Scene, VisibleShape

VALUES = np.array([[0, 1000, 2500], [65535, 4, 70]], dtype=np.uint16)


def saved(image: Image.Image, form: str) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, form)
    return buffer.getvalue()


@pytest.mark.parametrize("form", ["PNG", "TIFF", "npy", "float TIFF"])
def test_every_format_gives_the_stored_values(form: str) -> None:
    if form == "npy":
        buffer = io.BytesIO()
        np.save(buffer, VALUES)
        data = buffer.getvalue()
    elif form == "float TIFF":
        data = saved(Image.fromarray(VALUES.astype(np.float32)), "TIFF")
    else:
        data = saved(Image.fromarray(VALUES), form)
    np.testing.assert_array_equal(load_depth(data, "map"), VALUES)


def test_scale_and_unknown_pixels() -> None:
    depth = to_depth(VALUES, DepthScale(0.001, "m", unknown=65535))
    np.testing.assert_allclose(depth, [[0, 1, 2.5], [0, 0.004, 0.07]], rtol=1e-6)
    floats = np.array([np.nan, np.inf, -1, 0, 2], dtype=np.float32)
    np.testing.assert_array_equal(to_depth(floats, DepthScale()), [0, 0, 0, 0, 2])


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (saved(Image.new("RGB", (4, 4)), "PNG"), "has 3 channels"),
        (saved(Image.new("L", (4, 4)), "JPEG"), "is a JPEG, which does not keep exact numbers"),
    ],
)
def test_pictures_of_depth_are_refused(data: bytes, why: str) -> None:
    with pytest.raises(UnreadableImage, match=why):
        load_depth(data, "map.png")


@pytest.mark.parametrize(
    "text", ["{}", "[1]", '{"scale": "far"}', '{"scale": 0}', "not json", "[" * 100_000, f'{{"scale": 1{"0" * 400}}}']
)
def test_a_wrong_scale_file_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "depth.json").write_text(text)
    with pytest.raises(VitrailError, match=r"depth\.json"):
        read_scale(tmp_path)


def pairs(root: Path, count: int = 6) -> Path:
    for folder in ("images", "depth"):
        (root / folder).mkdir()
    for number in range(count):
        picture = np.random.default_rng(number).integers(0, 256, (8, 8, 3), np.uint8)
        Image.fromarray(picture).save(root / "images" / f"{number}.png")
        Image.fromarray(np.full((8, 8), 1000 + number, np.uint16)).save(root / "depth" / f"{number}.png")
    return root


def test_a_folder_of_depth_maps_is_recognised_and_read(tmp_path: Path) -> None:
    root = pairs(tmp_path)
    (root / "depth.json").write_text(json.dumps({"scale": 0.001, "unit": "m"}))
    dataset = read_dataset(root)
    assert (dataset.task, dataset.labels, len(dataset.items)) == ("depth", ("depth (m)",), 6)
    np.testing.assert_allclose(dataset.items[2].target.read(), 1.002, rtol=1e-6)


def test_without_a_scale_the_values_are_taken_as_they_are_and_it_is_said(tmp_path: Path) -> None:
    dataset = read_dataset(pairs(tmp_path))
    assert dataset.labels == ("depth",) and dataset.items[0].target.read()[0, 0] == 1000
    assert [finding.kind for finding in dataset.findings] == ["no-depth-scale"]


def test_the_check_names_broken_empty_and_odd_maps(tmp_path: Path) -> None:
    root = pairs(tmp_path, 12)
    (root / "depth" / "0.png").write_bytes((root / "depth" / "0.png").read_bytes()[:-30])
    Image.fromarray(np.zeros((8, 8), np.uint16)).save(root / "depth" / "1.png")
    Image.fromarray(np.full((8, 8), 1, np.uint16)).save(root / "depth" / "2.png")
    Image.fromarray(np.full((4, 4), 1, np.uint16)).save(root / "depth" / "3.png")
    kinds = {finding.kind for finding in check_dataset(read_dataset(root)).findings}
    assert {"broken-depth-maps", "empty-depth-maps", "depth-scale-differs", "sizes-differ", "depth-range"} <= kinds


def test_the_depth_of_a_scene_by_hand() -> None:
    pixels = np.zeros((8, 8), bool)
    pixels[2:6, 2:6] = True
    depth = scene_depth(Scene(np.zeros((8, 8, 3), np.uint8), (VisibleShape(1, 2.0, pixels),)))
    assert depth[0, 0] == pytest.approx(10 - 6 * 0.5 / 8) and depth[7, 7] == pytest.approx(10 - 6 * 7.5 / 8)
    assert depth[4, 4] == pytest.approx(0.4 * 8 / 2)
    assert depth[2, 3] == 0 and depth[6, 3] == 0  # borders are unknown
