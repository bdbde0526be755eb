"""Whether pictures are taken alike, told from the pictures."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from sklearn.datasets import load_digits

from vitrail.data.loading.cache import ArrayCache
from vitrail.training.choices.mirror_symmetry import mirror_differences, taken_from_one_side


def cache_of(pixels: NDArray[np.uint8]) -> ArrayCache:
    return ArrayCache(pixels, np.array([pixels.shape[1:3]] * len(pixels)), {})


def arrows(
    count: int, seed: int = 0, to_the_right: float = 1.0, side: int = 24, channels: int = 3
) -> NDArray[np.uint8]:
    """Noise with something bright in one half."""
    random = np.random.default_rng(seed)
    pixels = random.integers(0, 120, (count, side, side, channels))
    right = random.random(count) < to_the_right
    pixels[right, 8:16, -9:-3] += 100
    pixels[~right, 8:16, 3:9] += 100
    return pixels.astype(np.uint8)


@pytest.mark.parametrize("channels", [1, 3, 5])
def test_what_always_looks_to_one_side_is_taken_alike(channels: int) -> None:
    assert taken_from_one_side(cache_of(arrows(60, channels=channels)), [0] * 60)


def test_what_looks_to_either_side_is_not() -> None:
    assert not taken_from_one_side(cache_of(arrows(400, to_the_right=0.5)), [0] * 400)


def test_each_class_may_have_a_side_of_its_own() -> None:
    """Such as arrows to the left and to the right, which a flip would make each other."""
    both = np.concatenate([arrows(60), arrows(60, to_the_right=0.0)])
    assert taken_from_one_side(cache_of(both), ["a"] * 60 + ["b"] * 60)
    assert not taken_from_one_side(cache_of(both), ["any"] * 120)


def test_with_few_pictures_of_a_class_all_are_compared() -> None:
    assert taken_from_one_side(cache_of(arrows(60)), list(range(60)))
    assert not taken_from_one_side(cache_of(arrows(200, to_the_right=0.5)), list(range(200)))


def test_digits_are_taken_alike_and_their_mirror_images_among_them_are_not() -> None:
    digits = load_digits()
    pixels = (digits.images * 15.9).astype(np.uint8)[..., None]
    assert taken_from_one_side(cache_of(pixels), digits.target.tolist())
    pixels[::2] = pixels[::2, :, ::-1]
    assert not taken_from_one_side(cache_of(pixels), digits.target.tolist())


@pytest.mark.parametrize("seed", range(5))
def test_a_handful_of_pictures_is_no_proof(seed: int) -> None:
    pixels = np.random.default_rng(seed).integers(0, 256, (6, 2, 2, 3)).astype(np.uint8)
    assert not taken_from_one_side(cache_of(pixels), [0, 0, 0, 1, 1, 2])
    assert not taken_from_one_side(cache_of(pixels[:1]), [0])


def test_pictures_of_one_colour_have_no_side() -> None:
    assert not taken_from_one_side(cache_of(np.full((20, 8, 8, 3), 7, np.uint8)), [0] * 20)


def test_a_mirrored_picture_has_the_opposite_difference() -> None:
    pixels = torch.from_numpy(arrows(3, side=40))
    there, back = mirror_differences(pixels), mirror_differences(pixels.flip(2))
    assert there.shape == (3, 16 * 16)
    torch.testing.assert_close(there, -back)
