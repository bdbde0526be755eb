"""Where the page draws masks and boxes: positions in the original image as fractions of the model's input."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vitrail.tasks.letterbox import Letterbox

MAX_MASK_PIXELS = 2_000_000  # of a mask sent to the page; of a larger one every second, third ... pixel is sent


def relative_box(box: Sequence[float], letterbox: Letterbox) -> list[float]:
    """(left, top, right, bottom) in pixels of the original image -> the same as fractions of the model's input."""
    top, left, bottom, right = letterbox.inside
    scale_y, scale_x = (bottom - top) / letterbox.own[0], (right - left) / letterbox.own[1]
    x0, x1 = ((left + side * scale_x) / letterbox.input[1] for side in box[::2])
    y0, y1 = ((top + side * scale_y) / letterbox.input[0] for side in box[1::2])
    return [round(side, 5) for side in (x0, y0, x1, y1)]


def overlay_positions(answer: Mapping[str, Any], letterbox: Letterbox | None) -> dict[str, Any]:
    """`mask_box`: where a mask lies; `boxes`: one for each object of the answer. Empty without a letterbox."""
    if letterbox is None:
        return {}
    height, width = letterbox.own
    positions: dict[str, Any] = {"mask_box": relative_box((0, 0, width, height), letterbox)}
    if "objects" in answer:
        positions["boxes"] = [relative_box(item["box"], letterbox) for item in answer["objects"]]
    return positions


def subsample_mask(mask: NDArray[Any]) -> NDArray[Any]:
    """(H, W) with at most MAX_MASK_PIXELS pixels, by leaving out rows and columns."""
    step = 1
    while mask.ndim >= 2 and mask[::step, ::step].size > MAX_MASK_PIXELS:
        step += 1
    return np.ascontiguousarray(mask[::step, ::step]) if step > 1 else mask
