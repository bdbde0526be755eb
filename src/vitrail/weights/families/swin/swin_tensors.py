"""What timm's and transformers' Swins have in common: blocks numbered by stage, and bias tables for windows.

A stage's merging stands at its beginning here and in timm, at the end of the stage before in transformers and in
Microsoft's own files.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any

from torch import Tensor

from vitrail.errors import VitrailError
from vitrail.model.swin.relative_bias import resample_table
from vitrail.model.swin.swin_config import SwinConfig
from vitrail.weights.family import count_blocks, shape_of
from vitrail.weights.naming import Names

Modules = Mapping[str, str | tuple[str, ...]]
RECOMPUTED = ("relative_position_index", "relative_coords_table", "attn_mask")  # buffers that old files hold
TABLE = "attention.positions.table"


def without_buffers(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Without what follows from the windows' size, and is recomputed."""
    return {name: tensor for name, tensor in tensors.items() if not name.endswith(RECOMPUTED)}


def count_stages(tensors: Mapping[str, Tensor], stages: str) -> tuple[int, ...]:
    """The number of blocks of each stage, under names such as `<stages>0.blocks.1.`."""
    return tuple(count_blocks(tensors, f"{stages}{stage}.blocks.") for stage in range(count_blocks(tensors, stages)))


def read_stages(tensors: Mapping[str, Tensor], depths: tuple[int, ...], first: Names) -> dict[str, Any]:
    """The fields that the shapes of the first block of each stage show. `first`: names of a Swin of these depths."""
    starts = [sum(depths[:stage]) for stage in range(len(depths))]
    width, channels, down, across = shape_of(tensors, first.theirs("stem.projection.weight")[0], 4)
    scale = first.theirs("blocks.0.attention.logit_scale")[0]
    version = "v2" if scale in tensors else "v1"
    heads = []
    for start in starts:
        if version == "v2":
            heads.append(shape_of(tensors, first.theirs(f"blocks.{start}.attention.logit_scale")[0], 3)[0])
        else:
            heads.append(shape_of(tensors, first.theirs(f"blocks.{start}.{TABLE}")[0], 2)[1])
    hidden, _ = shape_of(tensors, first.theirs("blocks.0.mlp.up.weight")[0], 2)
    bias = "q_bias" if version == "v2" else "qkv.bias"
    return {
        "version": version,
        "patch_size": (down, across),
        "channels": channels,
        "patch_bias": first.theirs("stem.projection.bias")[0] in tensors,
        "width": width,
        "depths": depths,
        "heads": tuple(heads),
        "mlp_ratio": hidden / width,
        "qkv_bias": first.theirs(f"blocks.0.attention.{bias}")[0] in tensors,
    }


def stage_names(
    depths: tuple[int, ...], ends: Modules, block: Modules, exact: Mapping[str, str], places: tuple[str, str]
) -> Names:
    """The table of names of a Swin with these depths.

    ends: modules outside of the stages. block, exact: modules and single tensors inside of a block. places: what a
    block is called, with {stage} and {i}, and a merging, with {stage}, the one that begins, or {before}.
    """
    modules: dict[str, str | tuple[str, ...]] = dict(ends)
    tensors: dict[str, str] = {}
    number = 0
    for stage, depth in enumerate(depths):
        where = {"stage": str(stage), "before": str(stage - 1)}
        if stage:
            merge = _filled(places[1], where)
            modules |= {f"merges.{number}.{part}": f"{merge}.{part}" for part in ("norm", "reduction")}
        for i in range(depth):
            place = _filled(places[0], where | {"i": str(i)})
            for ours, theirs in block.items():
                several = (theirs,) if isinstance(theirs, str) else theirs
                modules[f"blocks.{number}.{ours}"] = tuple(f"{place}.{name}" for name in several)
            tensors |= {f"blocks.{number}.{ours}": f"{place}.{theirs}" for ours, theirs in exact.items()}
            number += 1
    return Names(modules, {}, exact=tensors)


def _filled(template: str, values: Mapping[str, str]) -> str:
    return re.sub(r"\{(\w+)\}", lambda match: values[match[1]], template)


def read_pretrained_windows(stored: Any, depths: tuple[int, ...]) -> tuple[int, ...] | None:
    """Windows of an earlier training, one a stage, as config.json has them: the libraries' default has four."""
    if stored is None:
        return None
    if not isinstance(stored, list | tuple) or not all(type(side) is int and side >= 0 for side in stored):
        raise VitrailError(f"config.json has pretrained_window_sizes {stored!r}, not a whole number a stage"[:200])
    return tuple(stored[: len(depths)])


def table_side(rows: int) -> int | None:
    """The side of the square window that a bias table of so many rows is for, if it is for one."""
    side = math.isqrt(rows)
    return (side + 1) // 2 if side**2 == rows and side % 2 else None


def fit_tables(tensors: dict[str, Tensor], config: SwinConfig, theirs: Names, notes: list[str]) -> None:
    """Resample the bias tables that are for another window than the config's."""
    changed = set()
    for block, stage in enumerate(config.stage_of_block):
        if config.version != "v1":
            return
        name, window = theirs.theirs(f"blocks.{block}.{TABLE}")[0], config.stage_window(stage)
        rows, heads = shape_of(tensors, name, 2)
        if rows == (2 * window[0] - 1) * (2 * window[1] - 1):
            continue
        side = table_side(rows)
        if side is None or heads != config.heads[stage]:
            raise VitrailError(f"{name} has shape {(rows, heads)}, which is no table of a square window of its stage")
        tensors[name] = resample_table(tensors[name], (side, side), window)
        changed.add((side, window))
    for side, window in sorted(changed):
        notes.append(f"bias tables for windows of {side} x {side} were resampled to {window[0]} x {window[1]}")
