"""What every foreign family gives: a config, tensors under our names, preprocessing, and how each was known."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from torch import Tensor

from vitrail.errors import VitrailError
from vitrail.model.encoder_config import EncoderConfig
from vitrail.tasks.registry import DEFAULT_TASK
from vitrail.weights.preprocessing import Preprocessing
from vitrail.weights.source import Source

if TYPE_CHECKING:
    from vitrail.weights.checkpoint import Checkpoint

# Heads of the published widths; a weight file's shapes do not show them.
PUBLISHED_HEADS = {192: 3, 256: 4, 320: 5, 384: 6, 512: 8, 640: 10, 768: 12, 832: 13, 896: 14, 1024: 16, 1152: 16}
PUBLISHED_HEADS |= {1280: 16, 1408: 16, 1536: 24, 1664: 16}


@dataclass
class Foreign:
    """A foreign file as a config, tensors and preprocessing of ours."""

    config: EncoderConfig
    tensors: dict[str, Tensor]
    preprocessing: Preprocessing
    heads_from: str  # how the number of heads is known
    task: str = DEFAULT_TASK
    labels: list[str] | None = None
    notes: list[str] = field(default_factory=list)  # what was assumed or left out, a sentence each


class Family(Protocol):
    """A family's module: three things only, names of tensors, config, preprocessing."""

    NAME: str

    def recognises(self, source: Source) -> bool:
        """Whether the tensors of a file are this family's, by their names."""
        ...

    def convert(self, source: Source, settings: Mapping[str, Any]) -> Foreign:
        """The file in our terms. settings: what the caller knows and the file may not say, such as heads."""
        ...


class Writer(Protocol):
    """A family's module that can also write."""

    def write_folder(self, checkpoint: Checkpoint, folder: str | Path) -> None:
        """Write weights and JSON as the library loads them."""
        ...


def count_heads(width: int, settings: Mapping[str, Any], stored: Any = None, where: str = "") -> tuple[int, str]:
    """The number of heads and how it is known: the caller says, the files say, or it is that of a published width."""
    if settings.get("heads") is not None:
        return settings["heads"], "given by the caller"
    if isinstance(stored, int):
        return stored, where
    if width in PUBLISHED_HEADS:
        return PUBLISHED_HEADS[width], f"the published model of width {width}; the file does not say"
    raise VitrailError(f"the file does not say how many heads its width of {width} has: load it with heads=<number>")


def shape_of(tensors: Mapping[str, Tensor], name: str, dims: int) -> tuple[int, ...]:
    """The shape of a tensor that every model of the family has."""
    if name not in tensors:
        raise VitrailError(f"the weights lack {name}")
    shape = tuple(tensors[name].shape)
    if len(shape) != dims or 0 in shape:
        raise VitrailError(f"{name} has shape {shape}; a plain ViT's has {dims} numbers above 0")
    return shape


def count_blocks(tensors: Mapping[str, Tensor], before: str, after: str = ".") -> int:
    """How many blocks there are under names like `<before>7<after>`."""
    numbers = {name[len(before) :].split(after)[0] for name in tensors if name.startswith(before)}
    blocks = sorted(int(number) for number in numbers if number.isdigit())
    if not blocks or blocks != list(range(len(blocks))):
        raise VitrailError(
            f"the blocks under {before}* are numbered {blocks[:5]}..., not 0 to {max(len(blocks) - 1, 0)}"
        )
    return len(blocks)


def notes_on_unused(tensors: Mapping[str, Tensor], unused: Mapping[str, str]) -> list[str]:
    """The notes on tensors that are there and that Vitrail does not use. unused: start of their names -> note or ""."""
    return [note for start, note in unused.items() if note and any(name.startswith(start) for name in tensors)]


def native_size(
    positions: int, patch_size: tuple[int, int], settings: Mapping[str, Any], stored: Any = None
) -> tuple[int, int]:
    """The image size whose patches have these positions: the files say, or they form a square, or the caller says."""
    return native_layout(positions, (0,), patch_size, settings, stored)[1]


def native_layout(
    rows: int, prefixes: Sequence[int], patch_size: tuple[int, int], settings: Mapping[str, Any], stored: Any = None
) -> tuple[int, tuple[int, int]]:
    """How many rows of a position table belong to prefix tokens, out of `prefixes`, and the native image size.

    `settings["image_size"]` is the size the caller wants to use, maybe another than the native one, so it comes last.
    The size is in whole patches: SigLIP's 384 px are 378 for patches of 14, the rest was never seen.
    """
    for size in (stored, "square", settings.get("image_size")):
        for prefix in prefixes:
            grid = _grid(size, rows - prefix, patch_size)
            if grid is not None and grid[0] * grid[1] == rows - prefix > 0:
                return prefix, (grid[0] * patch_size[0], grid[1] * patch_size[1])
    raise VitrailError(
        f"it has {rows} positions, whose patches form no square: load it with image_size=(height, width)"
    )


def _grid(size: Any, positions: int, patch_size: tuple[int, int]) -> tuple[int, int] | None:
    if size == "square":
        side = math.isqrt(max(positions, 0))
        return side, side
    pair = (size, size) if isinstance(size, int) else size
    if not isinstance(pair, tuple | list) or len(pair) != 2 or not all(isinstance(side, int) for side in pair):
        return None
    return pair[0] // patch_size[0], pair[1] // patch_size[1]
