"""Depths and their errors as colours."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from vitrail.visuals.colours import HEAT, coloured

UNKNOWN = 150  # grey
FULL = 0.5  # a relative error of this and more has the brightest colour

Pixels = NDArray[np.uint8]


def colour_depth(depth: NDArray[np.floating], least: float | None = None, most: float | None = None) -> Pixels:
    """(H, W) -> (H, W, 3): near is light, far is dark, unknown (0) is grey. The range is the map's own unless given."""
    known = depth > 0
    values = depth[known]
    least = (float(values.min()) if values.size else 0.0) if least is None else least
    most = (float(values.max()) if values.size else 1.0) if most is None else most
    return _with_unknown((most - depth) / max(most - least, 1e-9), known)


def colour_error(answer: NDArray[np.floating], truth: NDArray[np.floating]) -> Pixels:
    """(H, W, 3): the relative error, dark where right, light from FULL on, grey where the truth is unknown."""
    known = truth > 0
    error = np.abs(answer - truth) / np.where(known, truth, 1)
    return _with_unknown(error / FULL, known)


def _with_unknown(shares: NDArray[np.floating], known: NDArray[np.bool_]) -> Pixels:
    return np.where(known[..., None], coloured(shares, HEAT), np.uint8(UNKNOWN))
