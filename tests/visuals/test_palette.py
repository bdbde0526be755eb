"""Colours of classes: told apart, the same everywhere, and in files that any viewer reads."""

from __future__ import annotations

import io

import numpy as np
import pytest
from PIL import Image

from vitrail.visuals.palette import NEUTRAL, UNKNOWN, coloured, hexadecimal, index_picture, overlay, palette


def labels(count):
    return [f"c{i}" for i in range(count)]


@pytest.mark.parametrize("count", [1, 2, 12, 20, 21, 100, 255])
def test_every_class_has_a_colour_of_its_own(count):
    colours = palette(labels(count))
    assert colours.shape == (count, 3)
    assert colours.dtype == np.uint8
    assert len({tuple(colour) for colour in colours.tolist()}) == count


def test_the_first_colours_are_far_apart():
    colours = palette(labels(12)).astype(int)
    distances = np.linalg.norm(colours[:, None] - colours[None], axis=2) + 1e3 * np.eye(12)
    assert distances.min() > 55


def test_colours_stand_out_on_white_and_on_black():
    """WCAG's contrast, at least 1.5 to either."""
    shares = palette(labels(255)) / 255
    linear = np.where(shares <= 0.04045, shares / 12.92, ((shares + 0.055) / 1.055) ** 2.4)
    luminance = linear @ [0.2126, 0.7152, 0.0722]
    assert (1.05 / (luminance + 0.05)).min() > 1.5
    assert ((luminance + 0.05) / 0.05).min() > 1.5


def test_a_class_keeps_its_colour_when_others_come_after_it():
    np.testing.assert_array_equal(palette(labels(5)), palette(labels(50))[:5])


def test_background_is_grey_and_takes_no_colour():
    colours = palette(["Background", "disc", "ring"])
    assert tuple(colours[0]) == NEUTRAL
    np.testing.assert_array_equal(colours[1:], palette(["disc", "ring"]))


def test_index_pngs_hold_numbers_and_show_colours():
    mask = np.array([[0, 1, 2], [2, 255, 254]], np.uint8)
    names = labels(255)
    buffer = io.BytesIO()
    index_picture(mask, names).save(buffer, "PNG")
    read = Image.open(io.BytesIO(buffer.getvalue()))
    assert read.mode == "P"
    np.testing.assert_array_equal(np.asarray(read), mask)
    shown = np.asarray(read.convert("RGB"))
    np.testing.assert_array_equal(shown, coloured(mask, names))
    assert tuple(shown[1, 1]) == UNKNOWN
    np.testing.assert_array_equal(shown[0, 2], palette(names)[2])


def test_overlay_keeps_the_picture_visible_and_draws_edges():
    image = np.full((6, 8, 3), 200, np.uint8)
    mask = np.zeros((6, 8), np.uint8)
    mask[:, 4:] = 1
    shown = overlay(mask, image, ["a", "b"])
    assert shown.shape == image.shape
    assert shown.dtype == np.uint8
    np.testing.assert_array_equal(shown[:, 4], np.broadcast_to(palette(["a", "b"])[1], (6, 3)))
    assert (np.abs(shown[0, 0].astype(int) - 200) < np.abs(palette(["a"])[0].astype(int) - 200) + 1).all()


def test_colours_for_css():
    assert hexadecimal((0, 15, 255)) == "#000fff"
