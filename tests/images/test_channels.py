"""More than 8 bits, and more or fewer than 3 channels."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
from PIL import Image

from vitrail.images.channels import counting_clipped, depth_of, eight_bit
from vitrail.images.decode import UnreadableImage, read_image


def ramp(top: int, dtype: type = np.uint16) -> np.ndarray:
    return np.linspace(0, top, 64).round().astype(dtype).reshape(8, 8)


@pytest.mark.parametrize(("top", "bits"), [(65535, 16), (16383, 14), (4095, 12), (1023, 10), (255, 8), (3000, 12)])
def test_16_bit_grey_is_scaled_by_the_depth_in_use(top: int, bits: int, make: SimpleNamespace) -> None:
    for form in ("PNG", "TIFF"):
        image = read_image(make.encoded(Image.fromarray(ramp(top)), form), 1)[..., 0]
        expected = np.rint(ramp(top) * (255 / (2**bits - 1)))
        assert np.abs(image - expected).max() <= 1
        assert (np.diff(image.ravel().astype(int)) >= 0).all()  # not clipped, not wrapped
    assert depth_of(ramp(top)) == bits


def test_the_depth_can_be_said(make: SimpleNamespace) -> None:
    data = make.encoded(Image.fromarray(ramp(4095)), "PNG")
    assert read_image(data, 1, bits=16).max() == round(4095 / 257)
    assert read_image(data, 1, bits=12).max() == 255


def test_the_depth_that_a_tiff_declares_is_used(make: SimpleNamespace) -> None:
    dark = make.encoded(Image.fromarray(ramp(500)), "TIFF", tiffinfo={281: 4095})
    assert read_image(dark, 1).max() == round(500 * 255 / 4095)


def test_floats_signed_numbers_booleans_and_holes() -> None:
    assert eight_bit(np.array([[0.0, 0.5, 1.0]])).tolist() == [[0, 128, 255]]
    assert eight_bit(np.array([[0.0, 100.0, 255.0]])).tolist() == [[0, 100, 255]]
    assert eight_bit(np.array([[-1.0, 0.0, 1.0]])).tolist() == [[0, 128, 255]]
    assert eight_bit(np.array([[np.nan, 1.0, np.inf]])).tolist() == [[0, 255, 0]]
    assert eight_bit(np.array([[-5, 5]], dtype=np.int16)).tolist() == [[0, 255]]
    assert eight_bit(np.array([[True, False]])).tolist() == [[255, 0]]
    assert eight_bit(np.full((2, 2), -3)).tolist() == [[0, 0], [0, 0]]
    assert eight_bit(np.array([[2**40, 0]], dtype=np.uint64)).tolist() == [[255, 0]]


@pytest.mark.parametrize("channels", [1, 2, 3, 4, 5, 13])
def test_npy_of_any_number_of_channels(channels: int, make: SimpleNamespace) -> None:
    values = np.random.default_rng(0).integers(0, 256, (9, 7, channels), dtype=np.uint8)
    np.testing.assert_array_equal(read_image(make.npy(values), channels), values)


def test_npy_of_other_channels_is_converted_only_where_that_has_a_meaning(make: SimpleNamespace) -> None:
    grey = np.arange(12, dtype=np.uint8).reshape(3, 4)
    assert read_image(make.npy(grey), 3)[1, 2].tolist() == [6, 6, 6]
    assert read_image(make.npy(np.dstack([grey] * 3)), 1)[1, 2].tolist() == [6]
    with pytest.raises(UnreadableImage, match="has 5 channels, not the 3 that are needed"):
        read_image(make.npy(np.zeros((4, 4, 5), np.uint8)))
    with pytest.raises(UnreadableImage, match="channels come last"):
        read_image(make.npy(np.zeros((6, 32, 32), np.uint8)), 6)
    for wrong in (np.zeros(5), np.zeros((2, 2, 2, 2)), np.zeros((0, 4, 3)), np.array([["a"]]), np.array([[1j]])):
        with pytest.raises(UnreadableImage):
            read_image(make.npy(wrong))


def test_a_pickle_inside_npy_is_never_run(make: SimpleNamespace) -> None:
    with pytest.raises(UnreadableImage, match="is damaged"):
        read_image(make.npy(np.array([{"a": 1}], dtype=object)))


def test_tiff_with_a_page_for_each_channel(make: SimpleNamespace) -> None:
    pages = [Image.fromarray(np.full((6, 8), 10 * n, np.uint8)) for n in range(7)]
    data = make.encoded(pages[0], "TIFF", save_all=True, append_images=pages[1:])
    assert read_image(data, 7)[2, 3].tolist() == [0, 10, 20, 30, 40, 50, 60]
    assert read_image(data, 1)[2, 3].tolist() == [0]  # the first page
    with pytest.raises(UnreadableImage):
        read_image(data, 6)


@pytest.mark.parametrize("planar", ["contig", "separate"])
def test_tiff_with_many_samples_in_a_page(planar: str) -> None:
    tifffile = pytest.importorskip("tifffile")
    import io

    values = np.random.default_rng(1).integers(0, 4096, (13, 10, 12), dtype=np.uint16)
    buffer = io.BytesIO()
    stored = values if planar == "separate" else np.moveaxis(values, 0, 2)
    tifffile.imwrite(buffer, stored, photometric="minisblack", planarconfig=planar)
    image = read_image(buffer.getvalue(), 13)
    assert np.abs(image - np.moveaxis(values, 0, 2) * (255 / 4095)).max() <= 1
    with pytest.raises(UnreadableImage, match="another number of channels"):
        read_image(buffer.getvalue(), 3)


def test_many_samples_without_tifffile_say_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    tifffile = pytest.importorskip("tifffile")
    import io
    import sys

    buffer = io.BytesIO()
    tifffile.imwrite(buffer, np.zeros((8, 8, 6), np.uint8), photometric="minisblack")
    monkeypatch.setitem(sys.modules, "tifffile", None)
    with pytest.raises(UnreadableImage, match="pip install tifffile"):
        read_image(buffer.getvalue(), 6)


def test_the_fourth_band_of_a_tiff_is_kept(make: SimpleNamespace) -> None:
    tifffile = pytest.importorskip("tifffile")
    import io

    values = np.random.default_rng(2).integers(0, 256, (6, 5, 4), dtype=np.uint8)
    buffer = io.BytesIO()
    tifffile.imwrite(buffer, values, photometric="rgb", extrasamples=["unspecified"])
    np.testing.assert_array_equal(read_image(buffer.getvalue(), 4), values)
    np.testing.assert_array_equal(read_image(buffer.getvalue(), 3), values[..., :3])


def test_a_depth_leaves_alone_what_has_none():
    """A model of 12-bit images is also given photos and normalised arrays."""
    assert eight_bit(np.array([[0, 200]], dtype=np.uint8), bits=12).tolist() == [[0, 200]]
    assert eight_bit(np.array([[0.0, 0.5, 1.0]]), bits=12).tolist() == [[0, 128, 255]]
    assert eight_bit(np.array([[0.0, 4095.0]]), bits=12).tolist() == [[0, 255]]


def test_values_above_the_depth_are_clipped_and_counted():
    values = np.array([[0, 4095, 4096, 60000]], dtype=np.uint16)
    with counting_clipped() as clipped:
        assert eight_bit(values, bits=12).tolist() == [[0, 255, 255, 255]]
    assert clipped.values == 2
    with counting_clipped() as clipped:
        eight_bit(values)
    assert clipped.values == 0
