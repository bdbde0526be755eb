"""Which images belong together: those of one group, and those that look the same."""

from pathlib import Path

import numpy as np
from PIL import Image

from vitrail.data.checks.perceptual_hash import signature_of
from vitrail.data.image_groups import group_images
from vitrail.dataset import Item


def picture(seed: int) -> np.ndarray:
    fields = np.random.default_rng(seed).integers(0, 256, (6, 6, 3), dtype=np.uint8)
    return np.asarray(Image.fromarray(fields).resize((64, 64), Image.Resampling.BICUBIC))


def grouped(*pairs):
    """The groups of (picture, group) pairs, as sets of places."""
    items = [Item(Path(f"{place}.png"), 0, "val", group) for place, (_, group) in enumerate(pairs)]
    numbers = group_images(items, [signature_of(pixels) for pixels, _ in pairs])
    if numbers is None:
        return None
    return sorted([place for place, one in enumerate(numbers) if one == number] for number in set(numbers))


def test_images_on_their_own_are_no_groups():
    assert grouped((picture(0), None), (picture(1), "a"), (picture(2), "b")) is None


def test_the_column_group():
    assert grouped((picture(0), "a"), (picture(1), "b"), (picture(2), "a"), (picture(3), None)) == [[0, 2], [1], [3]]


def test_near_copies_are_a_group_and_join_groups():
    darker = (picture(0) * 0.9).astype(np.uint8)
    assert grouped((picture(0), None), (picture(1), None), (darker, None)) == [[0, 2], [1]]
    joined = grouped((picture(0), "a"), (picture(1), "a"), (darker, "b"), (picture(2), "b"), (picture(3), None))
    assert joined == [[0, 1, 2, 3], [4]]


def test_blank_pictures_have_nothing_to_be_compared_by():
    blank = np.full((20, 20, 3), 90, np.uint8)
    assert grouped((blank, None), (blank, None)) is None
