"""Answers about places, for the page: the picture's own pixels as shares of what the model sees."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vitrail.data.inputs import frame_of
from vitrail.tasks.frame import Frame
from vitrail.weights.preprocessing import Preprocessing

MOST = 2_000_000  # pixels of a mask that is sent to be shown; of a larger one every second, third ... is


def frame_shown(own: tuple[int, int], preprocessing: Preprocessing) -> Frame:
    """Where a picture lies in what `prepare` makes of it. One seen through windows reaches beyond the one shown."""
    if preprocessing.resize != "window":
        return frame_of(own, preprocessing)
    top, left = (
        (side - min(side, length)) // 2 - (length - min(side, length)) // 2
        for side, length in zip(preprocessing.size, own, strict=True)
    )
    return Frame(own, (top, left, top + own[0], left + own[1]), preprocessing.size)


def shares_of(box: Sequence[float], frame: Frame) -> list[float]:
    """left, top, right, bottom in the picture's own pixels -> the same from 0 to 1 of what the model sees."""
    top, left, bottom, right = frame.inside
    down, across = (bottom - top) / frame.own[0], (right - left) / frame.own[1]
    x0, x1 = ((left + side * across) / frame.input[1] for side in box[::2])
    y0, y1 = ((top + side * down) / frame.input[0] for side in box[1::2])
    return [round(side, 5) for side in (x0, y0, x1, y1)]


def placed(answer: Mapping[str, Any], frame: Frame | None) -> dict[str, Any]:
    """What a page needs to lay an answer over the picture: each object's box, and where a mask lies."""
    if frame is None:
        return {}
    found: dict[str, Any] = {"mask_box": shares_of((0, 0, frame.own[1], frame.own[0]), frame)}
    if "objects" in answer:
        found["boxes"] = [shares_of(one["box"], frame) for one in answer["objects"]]
    return found


def thinned(array: NDArray[Any]) -> NDArray[Any]:
    """Small enough to be shown."""
    step = 1
    while array.ndim >= 2 and array[::step, ::step].size > MOST:
        step += 1
    return np.ascontiguousarray(array[::step, ::step]) if step > 1 else array
