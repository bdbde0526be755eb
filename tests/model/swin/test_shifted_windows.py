"""How a grid is cut into windows, against what a token-by-token reading of the paper says."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from vitrail.model.swin.shifted_windows import MASKED, windows_of

CPU = torch.device("cpu")
GRIDS = [(8, 8), (7, 9), (4, 13), (3, 3), (1, 6)]


def numbers(grid):
    """(1, N, 1): every token says its own number."""
    return torch.arange(grid[0] * grid[1])[None, :, None].float()


@pytest.mark.parametrize("grid", GRIDS, ids=str)
@pytest.mark.parametrize("shifted", [False, True])
@pytest.mark.parametrize("pad_before_shift", [False, True])
def test_reverse_undoes_the_partition(grid, shifted, pad_before_shift):
    windows = windows_of(grid, (4, 4), shifted, pad_before_shift)
    cut = windows.partition(numbers(grid))
    assert cut.shape[2:] == (windows.tokens, 1)
    assert torch.equal(windows.reverse(cut), numbers(grid))


def test_a_window_holds_neighbours_row_by_row():
    cut = windows_of((4, 6), (2, 3), False, True).partition(numbers((4, 6)))[0, :, :, 0].int().tolist()
    assert cut == [[0, 1, 2, 6, 7, 8], [3, 4, 5, 9, 10, 11], [12, 13, 14, 18, 19, 20], [15, 16, 17, 21, 22, 23]]


def test_the_shift_is_half_a_window_around_the_edges():
    cut = windows_of((4, 4), (2, 2), True, True).partition(numbers((4, 4)))[0, :, :, 0].int().tolist()
    assert cut == [[5, 6, 9, 10], [7, 4, 11, 8], [13, 14, 1, 2], [15, 12, 3, 0]]


def test_a_window_is_no_larger_than_the_grid_on_each_axis_for_itself():
    windows = windows_of((3, 20), (7, 7), True, True)
    assert (windows.size, windows.shift) == ((3, 7), (0, 3))
    assert windows_of((7, 7), (7, 7), True, True).shift == (0, 0)


@pytest.mark.parametrize("pad_before_shift", [True, False])
def test_padding_is_numbered_as_no_token(pad_before_shift):
    windows = windows_of((5, 5), (3, 3), True, pad_before_shift)
    tokens = windows.token_numbers(CPU)
    assert windows.padded == (6, 6)
    assert sorted(tokens.flatten().tolist()) == [*range(25), *([25] * 11)]


def test_padding_stands_behind_the_picture_or_between_its_ends():
    first, last = (windows_of((1, 5), (1, 3), True, before).token_numbers(CPU).tolist() for before in (True, False))
    assert first == [[1, 2, 3], [4, 5, 0]]  # 0 1 2 3 4 pad, then shifted
    assert last == [[1, 2, 3], [4, 0, 5]]  # 1 2 3 4 0, then padded


@given(st.integers(1, 9), st.integers(1, 9), st.integers(2, 4), st.booleans())
def test_masked_are_the_pairs_that_the_shift_brought_together(height, width, side, pad_before_shift):
    """In a shifted window, two places belong together if they are neighbours in the grid before the shift."""
    windows = windows_of((height, width), (side, side), True, pad_before_shift)
    mask = windows.mask(CPU)
    if mask is None:
        assert height <= side and width <= side
        return
    rows, columns = windows.padded
    for window in range(len(mask)):
        top, left = divmod(window, columns // windows.size[1])
        places = [
            (top * windows.size[0] + i, left * windows.size[1] + j)
            for i in range(windows.size[0])
            for j in range(windows.size[1])
        ]
        # whether a place came from the other side of the grid, on each axis
        wrapped = [(r + windows.shift[0] >= rows, c + windows.shift[1] >= columns) for r, c in places]
        apart = torch.tensor([[one != other for other in wrapped] for one in wrapped])
        assert torch.equal(mask[window], MASKED * apart.float())


def test_windows_that_are_not_shifted_have_no_mask():
    assert windows_of((8, 8), (4, 4), False, True).mask(CPU) is None
