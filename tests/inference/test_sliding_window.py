"""The sliding window: it covers everything, begins at whole patches, and gives back what one look would give."""

from __future__ import annotations

import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from vitrail.errors import VitrailError
from vitrail.inference.sliding_window import WindowMerger, cut_windows, merge, tiling, window_weight
from vitrail.model.presets import preset
from vitrail.model.vit import ViT
from vitrail.tasks.letterbox import Letterbox
from vitrail.tasks.segment.segment import Segment


@given(
    own=st.tuples(st.integers(1, 300), st.integers(1, 300)),
    patches=st.tuples(st.integers(1, 6), st.integers(1, 6)),
    patch=st.tuples(st.integers(1, 16), st.integers(1, 16)),
    overlap=st.floats(0, 0.9),
)
@settings(max_examples=200, deadline=None)
def test_windows_cover_the_picture(own, patches, patch, overlap):
    window = patches[0] * patch[0], patches[1] * patch[1]
    tiles = tiling(own, window, patch, overlap)
    for axis in (0, 1):
        begins = sorted({place[axis] for place in tiles.offsets})
        assert begins[0] == 0
        assert all(begin % patch[axis] == 0 for begin in begins)
        assert all(b - a <= window[axis] for a, b in itertools.pairwise(begins))  # no gap
        assert begins[-1] + window[axis] >= own[axis]
        assert len(begins) == 1 or begins[-1] + window[axis] < own[axis] + patch[axis]  # little is padding
    assert len(set(tiles.offsets)) == len(tiles.offsets)


def test_windows_overlap_by_the_share_at_least():
    tiles = tiling((500, 700), (128, 128), (16, 16), 0.25)
    for axis in (0, 1):
        begins = sorted({place[axis] for place in tiles.offsets})
        assert all(b - a <= 96 for a, b in itertools.pairwise(begins))
    assert tiling((128, 224), (128, 128), (16, 16), 0.25).offsets == ((0, 0), (0, 96))
    assert tiling((128, 225), (128, 128), (16, 16), 0.25).padded_size == (128, 240)


def test_a_picture_that_fits_is_one_window():
    assert tiling((128, 128), (128, 128), (16, 16)).offsets == ((0, 0),)
    assert tiling((20, 31), (128, 128), (16, 16)).offsets == ((0, 0),)
    assert tiling((20, 31), (128, 128), (16, 16)).letterbox == Letterbox((20, 31), (0, 0, 20, 31), (128, 128))


@pytest.mark.parametrize("own", [(64, 64), (65, 64), (100, 131), (30, 200), (7, 5)], ids=str)
@pytest.mark.parametrize("cells", [1, 2, 4, 8])
def test_cut_and_merge_give_the_picture_back(own, cells):
    """Of a model that looks at one cell only, windows know as much as the whole picture does."""
    tiles = tiling(own, (64, 64), (8, 8))
    picture = torch.randn(3, *own)
    whole = torch.nn.functional.pad(picture, (0, tiles.padded_size[1] - own[1], 0, tiles.padded_size[0] - own[0]))
    expected = torch.nn.functional.avg_pool2d(whole, cells)
    seen = [torch.nn.functional.avg_pool2d(one, cells) for one in cut_windows(picture, tiles)]
    torch.testing.assert_close(merge(seen, tiles), expected)


def test_padding_is_of_the_colour_that_is_asked_for():
    tiles = tiling((3, 5), (8, 8))
    window = cut_windows(torch.zeros(2, 3, 5), tiles, fill=7.0)[0]
    assert (window[:, 3:] == 7).all()
    assert (window[:, :, 5:] == 7).all()
    assert (window[:, :3, :5] == 0).all()


def test_some_windows_at_a_time():
    tiles = tiling((100, 100), (64, 64), (8, 8))
    picture = torch.randn(3, 100, 100)
    assert len(tiles.offsets) == 4
    torch.testing.assert_close(cut_windows(picture, tiles, tiles.offsets[1:3]), cut_windows(picture, tiles)[1:3])


def test_one_window_is_exactly_the_models_answer():
    """Where a picture fits, the sliding window and the whole image are the same to the last bit."""
    torch.manual_seed(0)
    model = ViT(preset("mu/4", image_size=32, classes=4, head="mask_decoder")).eval()
    task = Segment(list("abcd"))
    for own in ((32, 32), (21, 32), (17, 9)):
        tiles = tiling(own, (32, 32), (4, 4))
        picture = torch.randn(3, *own)
        with torch.no_grad():
            by_windows = merge(model(cut_windows(picture, tiles)), tiles)
            padded = torch.nn.functional.pad(picture, (0, 32 - own[1], 0, 32 - own[0]))
            whole = model(padded[None])[0]
        assert torch.equal(by_windows, whole)
        mask = task.decode(by_windows[None], [tiles.letterbox])[0]
        assert mask.shape == own


def test_middle_of_large_pictures_is_what_a_window_there_says():
    """Beyond one window, a model of any reach: each window's middle counts most."""
    tiles = tiling((32, 56), (32, 32), (4, 4), 0.25)
    assert tiles.offsets == ((0, 0), (0, 24))
    merged = merge([torch.full((1, 16, 16), 1.0), torch.full((1, 16, 16), 3.0)], tiles)
    assert merged.shape == (1, 16, 28)
    row = merged[0, 0]
    assert torch.equal(row[:12], torch.ones(12))  # only the first window is there
    torch.testing.assert_close(row[16:], torch.full((12,), 3.0))
    assert (row.diff() >= -1e-6).all()  # and smooth between
    assert row[12] < 2 < row[15]


def test_cells_that_are_no_whole_number_a_patch_are_made_finer():
    """An odd patch at half the resolution: 21 pixels are 11 cells."""
    tiles = tiling((30, 21), (21, 21), (7, 7))
    merged = merge([torch.ones(2, 11, 11)] * len(tiles.offsets), tiles)
    assert merged.shape == (2, 20, 12)
    torch.testing.assert_close(merged, torch.ones_like(merged))


def test_weights_are_largest_in_the_middle_and_never_zero():
    weight = window_weight((9, 12))
    assert weight.shape == (9, 12)
    assert weight.argmax() == 4 * 12 + 5
    assert weight.max() <= 1
    assert weight.min() > 0
    torch.testing.assert_close(weight, weight.flip(0, 1))


def test_mistakes_are_said():
    with pytest.raises(VitrailError, match="not whole patches of 16"):
        tiling((100, 100), (40, 48), (16, 16))
    with pytest.raises(VitrailError, match="below 1"):
        tiling((100, 100), (48, 48), (16, 16), 1.0)
    with pytest.raises(VitrailError, match="nothing to look at"):
        tiling((0, 100), (48, 48), (16, 16))
    with pytest.raises(RuntimeError):
        WindowMerger(tiling((9, 9), (9, 9))).result()
