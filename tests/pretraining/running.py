"""Runs of `vitrail pretrain` that take a second."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from PIL import Image

from tests.training.running import TINY

TINY_PRETRAIN = (
    TINY
    + """
[pretrain]
method = "{method}"
local_crops = 2
outputs = 16
hidden = 32
weight_decay_end = 0.4
"""
)


def loose_pictures(folder: Path, count: int) -> Path:
    """Noise in one folder, without classes."""
    folder.mkdir(parents=True, exist_ok=True)
    random = np.random.default_rng(0)
    for number in range(count):
        Image.fromarray(random.integers(0, 255, (16, 16, 3), dtype=np.uint8)).save(folder / f"{number}.png")
    return folder
