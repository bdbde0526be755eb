"""How flat a picture's colours are: drawings, text and placeholders have few exact colours and hard edges between them,
photographs have neither."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

SAMPLES = 40  # rows and columns that are looked at, about
COLOURS = 3  # a ground and two inks
NOISE_BITS = 2  # lowest bits of a level that JPEG changes even where all is flat
WORTH_A_LOOK = 0.5  # share of samples like the one before, below which no more is computed: nearly every photo
SAME, SHADE = 4, 24  # grey levels between neighbours: up to SAME is noise, up to SHADE a shade, beyond an edge

Pixels = NDArray[np.uint8]


class Flatness(NamedTuple):
    """Of one picture."""

    flat: float = 0.0  # share of its most frequent COLOURS
    shaded: float = 1.0  # share of shades among the steps from one pixel to the next; the others are edges


NOT_FLAT = Flatness()


def flatness(pixels: Pixels) -> Flatness:
    """The flatness of a picture, uint8 (H, W, C), by a grid of samples. Of many channels the first three."""
    height, width, channels = pixels.shape
    down, right = -(-height // SAMPLES), -(-width // SAMPLES)
    one = pixels[::down, ::right, 1 % channels] >> NOISE_BITS
    if np.count_nonzero(one[:, 1:] == one[:, :-1]) < WORTH_A_LOOK * one.size:
        return NOT_FLAT
    samples = pixels[::down, ::right, :3] >> NOISE_BITS
    codes = samples.astype(np.uint32) @ np.array([1 << 16, 1 << 8, 1], np.uint32)[: samples.shape[2]]
    flat = float(np.sort(np.unique(codes, return_counts=True)[1])[-COLOURS:].sum() / codes.size)
    return Flatness(flat, _shaded(pixels[::down], pixels[:, ::right]) if flat > WORTH_A_LOOK else 1.0)


def _shaded(rows: Pixels, columns: Pixels) -> float:
    along_rows, along_columns = np.diff(_grey(rows), axis=1), np.diff(_grey(columns), axis=0)
    steps = np.abs(np.concatenate([along_rows.ravel(), along_columns.ravel()]))
    steps = steps[steps > SAME]
    return float((steps <= SHADE).mean()) if steps.size else 1.0


def _grey(pixels: Pixels) -> NDArray[np.float32]:
    """(H, W). Colours alone would not do: JPEG keeps them at half the size, and their edges are soft."""
    return pixels[..., :3].mean(axis=2, dtype=np.float32)
