"""Which part of a picture one input shows."""

from __future__ import annotations

import numpy as np
import pytest

from vitrail.data.loading.transforms import letterbox_of, prepare
from vitrail.weights.preprocessing import Preprocessing


@pytest.mark.parametrize("size", [(40, 64), (41, 33), (20, 64), (20, 10), (32, 32)])
def test_the_visible_part_is_the_one_that_the_window_shows(size: tuple[int, int]) -> None:
    picture = np.random.default_rng(0).integers(0, 255, (*size, 3), dtype=np.uint8)
    preprocessing = Preprocessing(size=(32, 32), resize="window")
    letterbox = letterbox_of(size, preprocessing)
    visible, part = picture[letterbox.visible], letterbox.of_visible
    top, left, bottom, right = part.inside
    assert 0 <= top < bottom <= 32 and 0 <= left < right <= 32 and part.input == (32, 32)
    assert part.own == visible.shape[:2]
    assert (prepare(picture, preprocessing)[top:bottom, left:right] == visible).all()


def test_a_picture_that_fits_is_visible_as_it_is() -> None:
    letterbox = letterbox_of((100, 50), Preprocessing(size=(32, 32), resize="pad"))
    assert letterbox.of_visible == letterbox and letterbox.visible == (slice(0, 100), slice(0, 50))
