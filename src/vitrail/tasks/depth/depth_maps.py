"""Depth maps in files: 16-bit PNG, TIFF or `.npy`, and what their values mean.

A value times `scale` is the depth in `unit`. 0, negative numbers, NaN and infinity are unknown, and so is the value
that `depth.json` names. Nothing is guessed: without that file values are taken as they are.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vitrail.errors import VitrailError
from vitrail.images.arrays import is_npy, load_npy
from vitrail.images.decode import decode, open_image, read_file
from vitrail.images.unreadable import UnreadableImage, as_sentences
from vitrail.tasks.shared.pixel_maps import PixelMap
from vitrail.text import shown

SCALE_FILE = "depth.json"


@dataclass(frozen=True, slots=True)
class DepthScale:
    """What the values of depth files mean."""

    scale: float = 1.0  # depth of a value of 1
    unit: str = ""  # such as "m"
    unknown: float = 0.0  # a value that stands for "not measured", besides those that no depth can have


@dataclass(frozen=True, slots=True)
class DepthFile(PixelMap):
    """A depth map in a file of its own."""

    scale: DepthScale = field(repr=False)

    def read(self) -> NDArray[np.float32]:
        """(H, W) depths in the unit, 0 where unknown."""
        values = load_depth(read_file(self.path), str(self.path))
        return self.upright(to_depth(values, self.scale), "depth map")

    def __str__(self) -> str:  # another scale makes another map of the same file
        return f"depth {self.mark} {self.scale.scale!r} {self.scale.unknown!r} {self.turn}"


def load_depth(data: bytes, name: str) -> NDArray[Any]:
    """The values of a file (H, W), as they are stored."""
    if is_npy(data):
        return _one_channel(load_npy(data, name), name)
    with open_image(data, name) as image, as_sentences(name, data):
        if image.format in ("JPEG", "MPO", "WEBP", "GIF"):
            why = f"is a {image.format}, which does not keep exact numbers: save depth as 16-bit PNG, TIFF or .npy"
            raise UnreadableImage(name, "not a depth map", why)
        return _one_channel(np.asarray(decode(image, data, name)), name)


def to_depth(values: NDArray[Any], scale: DepthScale) -> NDArray[np.float32]:
    """Values as stored -> depths, 0 where unknown."""
    depth = values.astype(np.float32) * np.float32(scale.scale)
    unknown = (values == scale.unknown) | ~np.isfinite(depth) | (depth <= 0)
    return np.where(unknown, np.float32(0), depth)


def read_scale(root: Path) -> DepthScale | None:
    """What `depth.json` beside the folders says; None where there is none."""
    path = root / SCALE_FILE
    if not path.is_file():
        return None
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        scale = DepthScale(float(content["scale"]), str(content.get("unit", "")), float(content.get("unknown", 0)))
    except (OSError, ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError):
        example = '{"scale": 0.001, "unit": "m"}'
        raise VitrailError(f"{shown(path)} does not say what a value means: write for example {example}") from None
    if not (math.isfinite(scale.scale) and scale.scale > 0):
        raise VitrailError(f"{shown(path)}: scale is {scale.scale}; it is the depth of a value of 1, above 0")
    return scale


def _one_channel(values: NDArray[Any], name: str) -> NDArray[Any]:
    if values.ndim == 3 and values.shape[2] == 1:
        values = values[..., 0]
    if values.ndim != 2:
        why = f"has {values.shape[-1]} channels, and a depth map has one: save the depths, not a picture of them"
        raise UnreadableImage(name, "not a depth map", why)
    if values.dtype.kind not in "uif":
        raise UnreadableImage(name, "not a depth map", f"holds values of type {values.dtype}, not numbers")
    return values
