"""Relative positions of BEiT as its files have them: a table in every block, or one for all."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from torch import Tensor

from vitrail.errors import VitrailError
from vitrail.weights.family import shape_of

COMPUTED = "relative_position_index"  # in older files: which row of the table is whose


def in_every_block(tensors: Mapping[str, Tensor], shared: str, own: str, depth: int) -> dict[str, Tensor]:
    """The table that blocks share, added to each block's own or in its place. own: a name with {i}."""
    tables = {name: tensor for name, tensor in tensors.items() if not name.endswith(COMPUTED)}
    if shared not in tables:
        return tables
    table = tables.pop(shared)
    for block in range(depth):
        name = own.replace("{i}", str(block))
        if name in tables and tables[name].shape != table.shape:
            raise VitrailError(f"{name} has shape {tuple(tables[name].shape)}, {shared} {tuple(table.shape)}")
        tables[name] = tables[name] + table if name in tables else table
    return tables


def native_size_of_steps(
    tensors: Mapping[str, Tensor], own: str, patch_size: tuple[int, int], settings: Mapping[str, Any], stored: Any
) -> tuple[int, int]:
    """The image size whose grid has as many steps from patch to patch as the first block's table, less three."""
    steps = shape_of(tensors, own.replace("{i}", "0"), 2)[0] - 3
    side = (math.isqrt(max(steps, 0)) + 1) // 2
    square = side * patch_size[0], side * patch_size[1]
    for size in (stored, square, settings.get("image_size")):
        pair = (size, size) if isinstance(size, int) else size
        if not isinstance(pair, tuple | list) or len(pair) != 2 or not all(type(length) is int for length in pair):
            continue
        grid = pair[0] // patch_size[0], pair[1] // patch_size[1]
        if (2 * grid[0] - 1) * (2 * grid[1] - 1) == steps and min(grid) > 0:
            return grid[0] * patch_size[0], grid[1] * patch_size[1]
    raise VitrailError(
        f"it has {steps} steps between patches, of no square grid: load it with image_size=(height, width)"
    )


def without_key_bias(bias: Tensor) -> tuple[Tensor, Tensor]:
    """The biases of queries and values. BEiT's keys have none: it would add the same to every score of a query."""
    q, _, v = bias.chunk(3)
    return q.clone(), v.clone()
