"""Masks as targets: a class for every pixel."""

from __future__ import annotations

import torch

from vitrail.tasks.dense_options import IGNORE
from vitrail.tasks.shared.pixel_map_targets import PixelMapTargets


class MaskTargets(PixelMapTargets):
    """Class numbers, IGNORE where nothing is known."""

    unknown = float(IGNORE)
    target_dtype = torch.int64
