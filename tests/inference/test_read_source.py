"""A path, its bytes, a Pillow image and an array of one picture are one input."""

from __future__ import annotations

import io
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from vitrail.errors import VitrailError
from vitrail.images.unreadable import UnreadableImage
from vitrail.inference.read_source import read_source
from vitrail.weights.preprocessing import Preprocessing

SIZE = Preprocessing(size=(32, 32))


def test_all_kinds_of_sources_agree(tmp_path: Path, picture: Callable[..., Image.Image]) -> None:
    path = tmp_path / "a.png"
    picture(1).save(path)
    expected = read_source(path, SIZE, "it")
    assert expected.shape == (32, 32, 3) and expected.dtype == np.uint8
    for source in (str(path), path.read_bytes(), Image.open(path), picture(1), np.asarray(picture(1))):
        assert np.array_equal(read_source(source, SIZE, "it"), expected)


def test_a_pillow_image_is_turned_upright_as_its_file_is(tmp_path: Path, picture: Callable[..., Image.Image]) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6
    picture(2).save(tmp_path / "turned.png", exif=exif)
    by_path = read_source(tmp_path / "turned.png", SIZE, "it")
    assert np.array_equal(read_source(Image.open(tmp_path / "turned.png"), SIZE, "it"), by_path)
    assert not np.array_equal(read_source(picture(2), SIZE, "it"), by_path)


def test_grey_becomes_colour_and_floats_become_bytes() -> None:
    grey = np.arange(32 * 32).reshape(32, 32).astype(np.uint8)
    for values in (grey, grey / 255):
        assert np.array_equal(read_source(values, SIZE, "it"), np.repeat(grey[..., None], 3, axis=2))


def test_one_pillow_image_many_times_is_loaded_once_at_a_time(picture: Callable[..., Image.Image]) -> None:
    file = io.BytesIO()
    picture(3, (600, 600)).save(file, "PNG")
    lazy = Image.open(file)
    with ThreadPoolExecutor(8) as pool:
        results = list(pool.map(lambda _: read_source(lazy, SIZE, "it"), range(16)))
    assert all(np.array_equal(result, results[0]) for result in results)


@pytest.mark.parametrize(
    ("source", "sentence"),
    [
        (b"", "image number 3 is empty"),
        (b"no picture", "image number 3 is not an image"),
        (np.zeros((2, 8, 8, 3), np.uint8), "image number 3 is an array of shape .2, 8, 8, 3.: .* as a list"),
        (np.zeros((0, 8, 3), np.uint8), "image number 3 is an array of shape .0, 8, 3."),
        (np.zeros((8, 8, 5), np.uint8), "image number 3 has 5 channels, not the 3"),
        ("nowhere.jpg", "nowhere.jpg does not exist"),
    ],
)
def test_what_is_no_image_is_named(source: Any, sentence: str) -> None:
    with pytest.raises(UnreadableImage, match=sentence):
        read_source(source, SIZE, "image number 3")


def test_a_stranger_is_a_mistake_of_the_caller() -> None:
    with pytest.raises(VitrailError, match="image number 1 is a int: give a path") as refused:
        read_source(3, SIZE, "image number 1")  # type: ignore[arg-type]
    assert not isinstance(refused.value, UnreadableImage)
