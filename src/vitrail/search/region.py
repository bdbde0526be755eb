"""The vector of a part of a picture, in the space of whole pictures, so that any index can be searched by it.

A window of the model's shape is cut around the box, so that the box fills it, and the network runs on the patches of
the box alone: they carry their positions, and the others are left out. A network that needs all of its patches (Swin,
attention in windows) sees the rest of the window in the mean colour, which is 0 for it.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from vitrail.data.loading.transforms import resize
from vitrail.errors import VitrailError
from vitrail.inference.read_source import Source, read_own_size
from vitrail.model.precision import autocast
from vitrail.search.embeddings import Embedder, Vectors, normalised


class Box(NamedTuple):
    """A part of a picture in its own pixels, upright: the left upper corner, and the sides."""

    x: float
    y: float
    width: float
    height: float


def region_vector(embedder: Embedder, source: Source, box: Box) -> Vectors:
    """(D,): what the model makes of the part of a picture. UnreadableImage, or VitrailError for a box outside of it."""
    preprocessing = embedder.checkpoint.preprocessing
    picture = read_own_size(source, preprocessing, "the image")  # (H, W, C)
    inside = clipped(box, picture.shape[0], picture.shape[1])
    mean = np.round(255 * np.array(preprocessing.mean)).clip(0, 255).astype(np.uint8)
    window, place = window_around(picture, inside, preprocessing.size, mean)
    pixels = resize(window, preprocessing.size, preprocessing.interpolation)
    scale = preprocessing.size[0] / window.shape[0], preprocessing.size[1] / window.shape[1]
    scaled = Box(place.x * scale[1], place.y * scale[0], place.width * scale[1], place.height * scale[0])
    vector = _run(embedder, pixels, scaled)
    return normalised(vector) if embedder.normalise else vector


def clipped(box: Box, height: int, width: int) -> Box:
    """The part of a box that is in the picture; VitrailError where there is none."""
    left, top = max(0.0, box.x), max(0.0, box.y)
    right, bottom = min(float(width), box.x + box.width), min(float(height), box.y + box.height)
    if right - left < 1 or bottom - top < 1:
        shape = f"{width} x {height}"
        raise VitrailError(f"the box {','.join(f'{side:g}' for side in box)} is not in the picture of {shape} pixels")
    return Box(left, top, right - left, bottom - top)


def window_around(
    picture: NDArray[np.uint8], box: Box, size: tuple[int, int], fill: NDArray[np.uint8]
) -> tuple[NDArray[np.uint8], Box]:
    """The smallest part (h, w, C) of the picture of the model's shape that holds the box, and where the box is in it.

    It is moved into the picture as far as it fits; what is outside has the colour `fill`, (C,).
    """
    shrink = max(box.height / size[0], box.width / size[1])
    height, width = (max(1, math.ceil(side * shrink)) for side in size)
    top = _start(box.y, box.height, height, picture.shape[0])
    left = _start(box.x, box.width, width, picture.shape[1])
    window = np.empty((height, width, picture.shape[2]), np.uint8)
    window[:] = fill
    rows = slice(max(0, top), min(picture.shape[0], top + height))
    columns = slice(max(0, left), min(picture.shape[1], left + width))
    window[rows.start - top : rows.stop - top, columns.start - left : columns.stop - left] = picture[rows, columns]
    return window, Box(box.x - left, box.y - top, box.width, box.height)


def _start(begin: float, length: float, side: int, limit: int) -> int:
    """Where a window of this side begins: around the middle, and inside of the picture if it fits."""
    middle = math.floor(begin + length / 2 - side / 2)
    return min(max(middle, 0), limit - side) if side <= limit else middle


def patches_in(box: Box, grid: tuple[int, int], patch: tuple[int, int]) -> NDArray[np.int64]:
    """The numbers of the patches whose middle is in the box, in the model's pixels; at least the one of its middle."""
    rows = (np.arange(grid[0]) + 0.5) * patch[0]
    columns = (np.arange(grid[1]) + 0.5) * patch[1]
    down = (rows >= box.y) & (rows < box.y + box.height)
    across = (columns >= box.x) & (columns < box.x + box.width)
    for inside, middle, side in ((down, box.y + box.height / 2, patch[0]), (across, box.x + box.width / 2, patch[1])):
        if not inside.any():
            inside[min(len(inside) - 1, int(middle // side))] = True
    return np.flatnonzero(down[:, None] & across[None]).astype(np.int64)


def _run(embedder: Embedder, pixels: NDArray[np.uint8], box: Box) -> Vectors:
    """By torch, whichever engine embeds whole pictures: no other can leave out patches."""
    engine, network = embedder.engine, embedder.checkpoint.model
    weight = next(network.parameters())
    patch = embedder.checkpoint.config.patch_size
    keep = None
    if embedder.checkpoint.config.drops_tokens:
        grid = (pixels.shape[0] // patch[0], pixels.shape[1] // patch[1])
        keep = torch.from_numpy(patches_in(box, grid, patch)).to(weight.device)
    images = engine.processor.transform([pixels], weight.device)
    if keep is None:
        outside = torch.ones(pixels.shape[:2], dtype=torch.bool, device=weight.device)
        top, left = math.floor(box.y), math.floor(box.x)
        outside[top : math.ceil(box.y + box.height), left : math.ceil(box.x + box.width)] = False
        images = images.masked_fill(outside, 0.0)
    with torch.inference_mode(), autocast(weight.device, "float32"):
        vectors: torch.Tensor = network.eval()(images.to(weight.dtype), keep=keep)
    return np.array(vectors[0].float().cpu().numpy())
