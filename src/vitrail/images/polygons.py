"""Which pixels a polygon covers: exactly those whose centre lies inside of it."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

AT_ONCE = 1_000_000  # crossings that are computed at once: some 60 MB
FARTHEST = 1e9  # pixels from the picture; beyond, a corner is moved there, so that no number overflows


def inside(points: NDArray[np.float64], size: tuple[int, int]) -> NDArray[np.bool_]:
    """(N, 2) corners as x, y in pixels, from the upper left corner of the picture -> (H, W), True inside.

    Every edge toggles the pixels to its right, in the rows whose centre it crosses; what was toggled an odd number of
    times is inside. A ValueError where there are far more crossings than an outline of this picture can have.
    """
    if not np.isfinite(points).all():
        raise ValueError("its polygon has a corner that lies nowhere")
    height, width = size
    start = np.clip(points, -FARTHEST, FARTHEST)
    end = np.roll(start, -1, axis=0)
    upper = np.where((start[:, 1] <= end[:, 1])[:, None], start, end)
    lower = np.where((start[:, 1] <= end[:, 1])[:, None], end, start)
    # row r is crossed if upper.y <= r + 0.5 < lower.y
    first = np.clip(np.ceil(upper[:, 1] - 0.5), 0, height).astype(np.int64)
    last = np.clip(np.ceil(lower[:, 1] - 0.5), 0, height).astype(np.int64)
    crossed = np.flatnonzero(last > first)
    mask = np.zeros(size, dtype=np.bool_)
    if not crossed.size:
        return mask
    upper, lower, first, last = upper[crossed], lower[crossed], first[crossed], last[crossed]
    ends = np.cumsum(last - first)
    if ends[-1] > AT_ONCE + 4 * height * width:
        raise ValueError(f"its polygon crosses the rows of the picture {ends[-1]:,} times")
    top, bottom = first.min(), last.max()
    xs = np.clip(np.ceil([upper[:, 0] - 0.5, lower[:, 0] - 0.5]), 0, width).astype(np.int64)
    left, right = xs.min(), xs.max()
    toggles = np.zeros((bottom - top, right - left + 1), dtype=np.uint8)
    parts = np.searchsorted(ends, np.arange(AT_ONCE, ends[-1], AT_ONCE))  # the edges with which another part begins
    for part in np.split(np.arange(len(ends)), parts):
        rows, crossings = _crossings(upper[part], lower[part], first[part], last[part])
        columns = np.clip(np.ceil(crossings - 0.5), left, right).astype(np.int64)  # the first centre to the right
        np.add.at(toggles, (rows - top, columns - left), 1)
    odd = np.cumsum(toggles, axis=1, dtype=np.uint8) & 1  # a byte that overflows is as odd as before
    mask[top:bottom, left:right] = odd[:, :-1]
    return mask


def _crossings(
    upper: NDArray[np.float64], lower: NDArray[np.float64], first: NDArray[np.int64], last: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Each row that an edge crosses, and at which x: edges (E, 2) from upper to lower, rows from first to last."""
    counts = last - first
    edge = np.repeat(np.arange(len(counts)), counts)
    rows = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts) + first[edge]
    share = (rows + 0.5 - upper[edge, 1]) / (lower - upper)[edge, 1]
    return rows, upper[edge, 0] + share * (lower - upper)[edge, 0]
