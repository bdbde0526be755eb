"""An explanation as PNG files, for slides: each map over the picture, large enough to be shown."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from vitrail.explanation.output.result import SIGNED, Explanation
from vitrail.files import replacing
from vitrail.visuals.colours import (
    Pixels,
    as_colours,
    cut_out,
    enlarged,
    gridded,
    on_patches,
    overlay,
    shown_picture,
    windowed,
)

SIDE = 896  # pixels of the longer side, about


def pictures_of(explanation: Explanation) -> Iterator[tuple[str, Pixels]]:
    """Names and pictures: the image, its patches, every map, attention by block and by head, masks, components."""
    big = enlarged(shown_picture(explanation.picture), SIDE)
    patch = big.shape[0] // explanation.grid[0], big.shape[1] // explanation.grid[1]
    yield "picture", big
    yield "patches", gridded(big, patch)
    for name, values in explanation.maps.items():
        yield name.replace("_", "-"), overlay(big, values, signed=name in SIGNED)
    if len(explanation.stages) > 1:
        for stage, values in enumerate(explanation.stages):
            yield f"relevance-stage-{stage}", overlay(big, on_patches(values, explanation.grid), signed=True)
    if explanation.attention is not None:
        yield from _attention_pictures(explanation, explanation.attention, big)
    if explanation.masks is not None:
        for head, mask in zip(explanation.heads, explanation.masks, strict=False):
            yield f"mask-head-{head:02d}", cut_out(big, on_patches(mask, explanation.grid))
    if explanation.foreground is not None:
        yield "foreground", cut_out(big, on_patches(explanation.foreground, explanation.grid))
    if explanation.components is not None:
        yield "components", enlarged((255 * explanation.components).round().astype(np.uint8), SIDE)


def _attention_pictures(
    explanation: Explanation, attention: list[NDArray[np.float32]], big: Pixels
) -> Iterator[tuple[str, Pixels]]:
    for block, heads in zip(explanation.blocks, attention, strict=True):
        yield f"attention-block-{block:02d}", _attended(explanation, block, heads.mean(0), big)
    last = explanation.blocks[-1]
    for head, values in zip(explanation.heads, attention[-1], strict=False):
        yield f"attention-block-{last:02d}-head-{head:02d}", _attended(explanation, last, values, big)
    yield "attention-all", sheet(attention)


def _attended(explanation: Explanation, block: int, values: NDArray[np.float32], big: Pixels) -> Pixels:
    """A block's map over the picture, with its windows; attention pooling stands behind the last block."""
    picture = overlay(big, on_patches(values, explanation.grid))
    windows = explanation.windows[block] if block < len(explanation.windows) else None
    return picture if windows is None else windowed(picture, on_patches(windows, explanation.grid))


def write_pngs(explanation: Explanation, folder: str | Path, prefix: str) -> list[Path]:
    written = []
    for name, picture in pictures_of(explanation):
        path = Path(folder) / f"{prefix}-{name}.png"
        with replacing(path) as temporary:
            Image.fromarray(picture).save(temporary, "PNG")
        written.append(path)
    return written


def sheet(attention: Sequence[NDArray[np.float32]], side: int = 112, gap: int = 4) -> Pixels:
    """(heads, h, w) of each block as one picture: a row for each block, a column for each head, each to its own
    brightest. Grids and heads may differ."""
    tiles = [[enlarged(as_colours(head, signed=False), side) for head in block] for block in attention]
    high, wide = (max(tile.shape[axis] for row in tiles for tile in row) for axis in (0, 1))
    columns = max(map(len, tiles))
    board = np.full((len(tiles) * (high + gap) - gap, columns * (wide + gap) - gap, 3), 150, np.uint8)
    for i, row in enumerate(tiles):
        for j, tile in enumerate(row):
            top, left = i * (high + gap), j * (wide + gap)
            board[top : top + tile.shape[0], left : left + tile.shape[1]] = tile
    return board


def file_prefixes(names: list[str]) -> list[str]:
    """A plain file name for each image, with a number where two are called the same."""
    prefixes: list[str] = []
    for name in names:
        plain = re.sub(r"[^\w.-]+", "-", Path(name).stem).strip(".-")[:80] or "image"
        count = 1
        while (numbered := plain if count == 1 else f"{plain}-{count}") in prefixes:
            count += 1
        prefixes.append(numbered)
    return prefixes
