"""Images that look the same are found; images that merely resemble each other are not."""

from __future__ import annotations

import io
from collections.abc import Callable
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image, ImageEnhance

from vitrail.data.checks import perceptual_hash
from vitrail.data.checks.perceptual_hash import RADIUS, alike, hash_picture, is_flat, small_picture


def look(images: list[Image.Image]) -> tuple[np.ndarray, np.ndarray]:
    pixels = [np.asarray(image.convert("RGB")) for image in images]
    hashes = np.array([hash_picture(one) for one in pixels], dtype=np.uint64)
    return hashes, np.stack([small_picture(one) for one in pixels])


def compressed(image: Image.Image, quality: int) -> Image.Image:
    buffer = io.BytesIO()
    image.save(buffer, "JPEG", quality=quality)
    return Image.open(io.BytesIO(buffer.getvalue()))


@pytest.mark.parametrize(
    "change",
    [
        lambda image: compressed(image, 50),
        lambda image: image.resize((image.width // 2, image.height // 2), Image.Resampling.LANCZOS),
        lambda image: compressed(image.resize((300, 260)), 70),
        lambda image: ImageEnhance.Brightness(image).enhance(0.9),
        lambda image: ImageEnhance.Contrast(image).enhance(0.85),
    ],
    ids=["compressed", "smaller", "larger and compressed", "darker", "less contrast"],
)
def test_copies_are_found_among_others(change: Callable[[Image.Image], Image.Image], make: SimpleNamespace) -> None:
    originals = [make.photo(seed, (160, 140)) for seed in range(20)]
    groups = alike(*look(originals + [change(image) for image in originals]))
    assert groups == [[n, n + 20] for n in range(20)]


def test_different_pictures_are_not_called_copies(make: SimpleNamespace) -> None:
    assert alike(*look([make.photo(seed) for seed in range(150)])) == []


def test_the_same_layout_in_other_colours_is_no_copy(make: SimpleNamespace) -> None:
    red, green, blue = make.photo(1).split()
    assert alike(*look([Image.merge("RGB", (red, green, blue)), Image.merge("RGB", (red, blue, green))])) == []


def test_handwritten_digits_are_not_copies_of_each_other() -> None:
    digits = pytest.importorskip("sklearn.datasets").load_digits().images[:600]
    images = [
        Image.fromarray((digit * 15.9).astype(np.uint8)).resize((32, 32), Image.Resampling.BICUBIC) for digit in digits
    ]
    assert sum(len(group) - 1 for group in alike(*look(images))) <= 6  # 1 in 100: some are as good as the same


@given(st.lists(st.integers(0, 2**64 - 1), min_size=2, max_size=40), st.data())
@settings(max_examples=60, deadline=None)
def test_every_pair_within_the_radius_is_compared(values: list[int], data: st.DataObject) -> None:
    for _ in range(6):  # neighbours at every distance up to the radius
        base = data.draw(st.sampled_from(values))
        for bit in data.draw(st.lists(st.integers(0, 63), max_size=RADIUS, unique=True)):
            base ^= 1 << bit
        values.append(base)
    hashes = np.unique(np.array(values, dtype=np.uint64))
    found = {
        (min(pair), max(pair))
        for first, second in perceptual_hash._candidates(hashes)
        for pair in zip(first.tolist(), second.tolist(), strict=True)
    }
    near = {
        (a, b)
        for a in range(len(hashes))
        for b in range(a + 1, len(hashes))
        if bin(int(hashes[a]) ^ int(hashes[b])).count("1") <= RADIUS
    }
    assert found == near


def test_a_crowd_of_the_same_is_one_group(make: SimpleNamespace) -> None:
    hashes, small = look([make.photo(0)])
    noise = np.uint64(1) << np.random.default_rng(0).integers(0, 64, 3000).astype(np.uint64)
    assert alike(np.repeat(hashes, 3000) ^ noise, np.repeat(small, 3000, axis=0)) == [list(range(3000))]


def test_bits_are_counted_alike_with_and_without_numpy_2(monkeypatch: pytest.MonkeyPatch) -> None:
    values = np.random.default_rng(0).integers(0, 2**63, 500).astype(np.uint64)
    expected = [bin(value).count("1") for value in values.tolist()]
    assert perceptual_hash._bit_count(values).tolist() == expected
    monkeypatch.delattr(np, "bitwise_count", raising=False)
    assert perceptual_hash._bit_count(values).tolist() == expected


def test_flat_pictures_and_few_of_them() -> None:
    flat = small_picture(np.full((30, 30, 3), 90, np.uint8))
    assert is_flat(flat) and not is_flat(small_picture(np.arange(2700, dtype=np.uint8).reshape(30, 30, 3)))
    assert alike(np.array([], np.uint64), np.empty((0, 16, 16, 3), np.uint8)) == []
    assert small_picture(np.zeros((4, 4, 7), np.uint8)).shape == (16, 16, 3)
    assert hash_picture(np.zeros((4, 4, 1), np.uint8)) == 0
