"""An explanation as PNG files, for slides: each map over the picture, large enough to be shown."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from vitrail.explanation.output.result import SIGNED, Explanation
from vitrail.files import replacing
from vitrail.visuals.colours import Pixels, as_colours, cut_out, enlarged, gridded, overlay, shown_picture

SIDE = 896  # pixels of the longer side, about


def pictures_of(explanation: Explanation) -> Iterator[tuple[str, Pixels]]:
    """Names and pictures: the image, its patches, every map, attention by block and by head, masks, components."""
    big = enlarged(shown_picture(explanation.picture), SIDE)
    patch = big.shape[0] // explanation.grid[0], big.shape[1] // explanation.grid[1]
    yield "picture", big
    yield "patches", gridded(big, patch)
    for name, values in explanation.maps.items():
        yield name.replace("_", "-"), overlay(big, values, signed=name in SIGNED)
    if explanation.attention is not None:
        for block, heads in zip(explanation.blocks, explanation.attention, strict=True):
            yield f"attention-block-{block:02d}", overlay(big, heads.mean(0))
        for head, values in zip(explanation.heads, explanation.attention[-1], strict=True):
            yield f"attention-block-{explanation.blocks[-1]:02d}-head-{head:02d}", overlay(big, values)
        yield "attention-all", sheet(explanation.attention)
    if explanation.masks is not None:
        for head, mask in zip(explanation.heads, explanation.masks, strict=True):
            yield f"mask-head-{head:02d}", cut_out(big, mask)
    if explanation.foreground is not None:
        yield "foreground", cut_out(big, explanation.foreground)
    if explanation.components is not None:
        yield "components", enlarged((255 * explanation.components).round().astype(np.uint8), SIDE)


def write_pngs(explanation: Explanation, folder: str | Path, prefix: str) -> list[Path]:
    written = []
    for name, picture in pictures_of(explanation):
        path = Path(folder) / f"{prefix}-{name}.png"
        with replacing(path) as temporary:
            Image.fromarray(picture).save(temporary, "PNG")
        written.append(path)
    return written


def sheet(attention: NDArray[np.float32], side: int = 112, gap: int = 4) -> Pixels:
    """(blocks, heads, h, w) as one picture: a row for each block, a column for each head, each to its own brightest."""
    rows = []
    for block in attention:
        tiles = [enlarged(as_colours(head, signed=False), side) for head in block]
        edged = [np.pad(tile, ((0, gap), (0, gap), (0, 0)), constant_values=150) for tile in tiles]
        rows.append(np.concatenate(edged, axis=1))
    return np.concatenate(rows, axis=0)[:-gap, :-gap]


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
