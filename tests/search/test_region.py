"""The vector of a part of a picture."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from vitrail.errors import VitrailError
from vitrail.model.presets import build_network, preset
from vitrail.search.embeddings import Embedder
from vitrail.search.region import Box, clipped, patches_in, region_vector, window_around
from vitrail.weights.checkpoint import Checkpoint
from vitrail.weights.preprocessing import Preprocessing

FILL = np.array([9, 9, 9], np.uint8)


def numbered(height: int, width: int) -> np.ndarray:
    """Each pixel has its row and its column for colours."""
    rows, columns = np.mgrid[:height, :width]
    return np.stack([rows, columns, 0 * rows], axis=2).astype(np.uint8)


def test_the_window_is_around_the_box_and_inside_of_the_picture() -> None:
    window, place = window_around(numbered(100, 200), Box(100, 40, 20, 10), (32, 32), FILL)
    assert window.shape == (20, 20, 3) and window[0, 0].tolist() == [35, 100, 0] and place == Box(0, 5, 20, 10)
    corner, place = window_around(numbered(100, 200), Box(0, 0, 40, 10), (32, 32), FILL)
    assert corner.shape == (40, 40, 3) and corner[0, 0].tolist() == [0, 0, 0] and place == Box(0, 0, 40, 10)
    wide, place = window_around(numbered(100, 200), Box(0, 0, 200, 100), (32, 32), FILL)  # does not fit
    assert wide.shape == (200, 200, 3) and wide[0, 0].tolist() == [9, 9, 9] and place == Box(0, 50, 200, 100)
    assert wide[50, 0].tolist() == [0, 0, 0]
    tall, _ = window_around(numbered(100, 200), Box(10, 10, 10, 10), (64, 32), FILL)
    assert tall.shape == (20, 10, 3)


def test_patches_are_those_whose_middle_is_inside() -> None:
    assert patches_in(Box(0, 0, 32, 32), (4, 4), (8, 8)).tolist() == list(range(16))
    assert patches_in(Box(0, 0, 16, 8), (4, 4), (8, 8)).tolist() == [0, 1]
    assert patches_in(Box(5, 5, 8, 8), (4, 4), (8, 8)).tolist() == [5]
    assert patches_in(Box(9, 9, 1, 1), (4, 4), (8, 8)).tolist() == [5]  # too small for a middle
    assert patches_in(Box(31.5, 0, 0.5, 32), (4, 4), (8, 8)).tolist() == [3, 7, 11, 15]


def test_outside_of_the_picture() -> None:
    assert clipped(Box(-10, -10, 30, 30), 100, 100) == Box(0, 0, 20, 20)
    with pytest.raises(VitrailError, match="the box 200,0,10,10 is not in the picture of 100 x 50 pixels"):
        clipped(Box(200, 0, 10, 10), 50, 100)


def test_the_whole_of_a_square_picture_is_the_picture(
    save: Callable[..., Path], picture: Callable[..., object]
) -> None:
    config = preset("mu/8", image_size=32, classes=0)
    torch.manual_seed(0)
    model = Checkpoint(build_network(config).eval(), Preprocessing(size=(32, 32)), "embed")
    embedder = Embedder(model, normalise=True)
    image = np.asarray(picture(3, (64, 64)))
    [whole] = embedder.embed([image])
    np.testing.assert_allclose(region_vector(embedder, image, Box(0, 0, 64, 64)), whole.vector, atol=1e-5)


@pytest.mark.parametrize("name", ["mu/8", "swin-mu"])
def test_what_is_beside_the_box_does_not_matter(name: str, picture: Callable[..., object]) -> None:
    """The same region with other things around it has the same vector; another region has another."""
    config = preset(name, image_size=64, classes=0)
    torch.manual_seed(0)
    model = Checkpoint(build_network(config).eval(), Preprocessing(size=(64, 64)), "embed")
    embedder = Embedder(model)
    left, right, other = (Image.fromarray(np.asarray(picture(seed, (64, 64)))) for seed in range(3))
    boxes = []
    for beside in (right, other):
        pair = Image.new("RGB", (128, 64))
        pair.paste(left, (0, 0))
        pair.paste(beside, (64, 0))
        boxes.append(region_vector(embedder, pair, Box(0, 16, 64, 32)))
    np.testing.assert_allclose(boxes[0], boxes[1], atol=1e-5)
    assert np.abs(boxes[0] - region_vector(embedder, pair, Box(64, 16, 64, 32))).max() > 1e-3
