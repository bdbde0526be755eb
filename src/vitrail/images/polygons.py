"""Which pixels a polygon covers: exactly those whose centre lies inside of it."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def inside(points: NDArray[np.float64], size: tuple[int, int]) -> NDArray[np.bool_]:
    """(N, 2) corners as x, y in pixels, from the upper left corner of the picture -> (H, W), True inside.

    Every edge toggles the pixels to its right, in the rows whose centre it crosses; what was toggled an odd number of
    times is inside.
    """
    height, width = size
    start, end = points, np.roll(points, -1, axis=0)
    upper = np.where((start[:, 1] <= end[:, 1])[:, None], start, end)
    lower = np.where((start[:, 1] <= end[:, 1])[:, None], end, start)
    # row r is crossed if upper.y <= r + 0.5 < lower.y
    first = np.clip(np.ceil(upper[:, 1] - 0.5), 0, height).astype(np.int64)
    last = np.clip(np.ceil(lower[:, 1] - 0.5), 0, height).astype(np.int64)
    counts = np.maximum(last - first, 0)
    edge = np.repeat(np.arange(len(points)), counts)
    rows = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts) + first[edge]
    fall = (lower[edge] - upper[edge])[:, 1]
    share = (rows + 0.5 - upper[edge, 1]) / np.where(fall == 0, 1, fall)
    crossing = upper[edge, 0] + share * (lower[edge, 0] - upper[edge, 0])
    columns = np.clip(np.ceil(crossing - 0.5), 0, width).astype(np.int64)  # the first centre to the right
    mask = np.zeros(size, dtype=np.bool_)
    if rows.size:
        top, bottom, left, right = rows.min(), rows.max() + 1, columns.min(), columns.max()
        toggles = np.zeros((bottom - top, right - left + 1), dtype=np.uint8)
        np.add.at(toggles, (rows - top, columns - left), 1)
        odd = np.cumsum(toggles, axis=1, dtype=np.uint8) & 1  # a byte that overflows is as odd as before
        mask[top:bottom, left:right] = odd[:, :-1]
    return mask
