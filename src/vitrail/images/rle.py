"""COCO's run lengths: how many pixels are outside, then inside, then outside, column by column.

faster-coco-eval, which measures detections, decodes them too. Ours says how many pixels do not add up, and spares who
only reads masks its import."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

LONGEST = 65  # bits of a number of the compressed form: 13 letters, as many as 64 bits need


def decode_rle(counts: str | Sequence[int], size: tuple[int, int]) -> NDArray[np.bool_]:
    """The mask (H, W) of COCO's run lengths; a ValueError where the runs do not add up to the picture."""
    runs = _unpacked(counts) if isinstance(counts, str) else list(counts)
    covered = sum(runs)  # of Python's numbers: 64 bits could wrap to the right sum, and np.repeat would write past it
    if min(runs, default=0) < 0 or covered != size[0] * size[1]:
        pixels = f"{covered:,}" if abs(covered) < 10**18 else "too many"
        raise ValueError(f"its runs cover {pixels} pixels, not {size[1]:,} x {size[0]:,}")
    values = np.repeat(np.arange(len(runs)) % 2 == 1, np.array(runs, dtype=np.int64))
    return values.reshape(size[1], size[0]).T


def _unpacked(text: str) -> list[int]:
    """The compressed form: numbers of 5 bits a letter, lowest first; bit 6 says that more follow, and from the third
    run on, what is written is the difference to the run before the last."""
    runs: list[int] = []
    value, shift = 0, 0
    for letter in text.encode("ascii"):
        bits = letter - 48
        value |= (bits & 31) << shift
        shift += 5
        if shift > LONGEST:
            raise ValueError("its compressed runs hold a number without an end")
        if bits & 32:
            continue
        if bits & 16:
            value -= 1 << shift
        runs.append(value + runs[-2] if len(runs) > 2 else value)
        value, shift = 0, 0
    if shift:
        raise ValueError("its compressed runs end in the middle of a number")
    return runs
