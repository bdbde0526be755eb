"""Where a token stands: added positions (learned, 1-D and 2-D sinusoidal), rotary ones, and the way to another grid."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitrail.errors import VitrailError
from vitrail.model.config import ViTConfig

Grid = tuple[int, int]
CPU = torch.device("cpu")  # named, so that fixed positions are real numbers in a model built on the meta device


def known(grid: Grid) -> bool:
    """Whether a grid is numbers. In torch.export with a free height and width it is symbols, and to compare a symbol
    with a number would tie the exported program to the answer."""
    return all(isinstance(side, int) for side in grid)


def sincos1d(positions: Tensor, width: int) -> Tensor:
    """(M,) -> (M, D): PE(p)[2i] = sin(p / 10000^(2i/D)), PE(p)[2i+1] = cos(same)."""
    rates = 10000.0 ** (-torch.arange(0, width, 2, device=positions.device, dtype=torch.float64) / width)  # (D/2,)
    angles = positions.double()[:, None] * rates  # (M, D/2)
    return torch.stack([angles.sin(), angles.cos()], dim=-1).flatten(1).to(torch.get_default_dtype())


def sincos2d(grid: Grid, width: int, device: torch.device | None = None) -> Tensor:
    """(h w, D): the first half of a vector encodes the row, the second half the column."""
    rows = sincos1d(torch.arange(grid[0], device=device), width // 2)  # (h, D/2)
    columns = sincos1d(torch.arange(grid[1], device=device), width // 2)  # (w, D/2)
    both = [rows[:, None].expand(-1, grid[1], -1), columns[None].expand(grid[0], -1, -1)]
    return torch.cat(both, dim=-1).flatten(0, 1)  # (h w, D)


def resample(table: Tensor, old: Grid, new: Grid, rule: str) -> Tensor:
    """Learned positions (h w, D) on another grid (h' w', D), by the rule of the family they were trained in.

    bicubic_antialias  timm; DINOv2 with registers (Meta and transformers)
    bicubic            transformers' ViT, DeiT, MAE, DINOv2, CLIP, SigLIP
    bicubic_offset     Meta's DINO and DINOv2 without registers: the scale factor is (new + 0.1) / old, so that
                       flooring cannot lose a row, and it is the scale, not the size, that places the samples
    bilinear           transformers' BEiT, whose positions are relative
    bilinear_antialias TIPS v2 in transformers
    linear             big_vision: corners on corners, linear between (scipy's zoom of order 1)
    """
    if known(new) and new == old:
        return table
    square = table.to(torch.promote_types(table.dtype, torch.float32))  # half precision shifts positions
    square = square.reshape(1, *old, -1).permute(0, 3, 1, 2)  # (1, D, h, w)
    if rule == "linear":
        square = F.interpolate(square, size=new, mode="bilinear", align_corners=True)
    elif rule == "bicubic_offset":
        if not known(new):
            raise VitrailError("resample 'bicubic_offset' needs a fixed image size in an export; 'bicubic' does not")
        scale = [(after + 0.1) / before for after, before in zip(new, old, strict=True)]
        square = F.interpolate(square, scale_factor=scale, mode="bicubic")
    else:
        mode = "bilinear" if rule.startswith("bilinear") else "bicubic"
        square = F.interpolate(square, size=new, mode=mode, antialias=rule.endswith("_antialias"))
    return square.permute(0, 2, 3, 1).reshape(new[0] * new[1], -1).to(table.dtype)


class LearnedPositions(nn.Module):
    """A table of one vector a patch, after one for [CLS] (and distillation) if they have a position."""

    def __init__(self, config: ViTConfig) -> None:
        super().__init__()
        self.grid, self.rule = config.grid, config.resample
        self.prefix, self.with_position = config.prefix, config.prefix_positions
        self.table = nn.Parameter(torch.empty(self.with_position + config.patches, config.width))

    def forward(self, grid: Grid) -> Tensor:
        """(prefix + N, D) for a grid, resampled where it is not the native one."""
        patches = resample(self.table[self.with_position :], self.grid, grid, self.rule)  # (N, D)
        registers = patches.new_zeros(self.prefix - self.with_position, patches.shape[1])
        return torch.cat([self.table[: self.with_position], registers, patches])  # (prefix + N, D)


class BlockPositions(nn.Module):
    """YOLOS: tables of one vector a token, prefix tokens first, added after each block but the last."""

    def __init__(self, config: ViTConfig) -> None:
        super().__init__()
        self.grid, self.rule, self.prefix = config.grid, config.resample, config.prefix
        self.table = nn.Parameter(torch.empty(config.depth - 1, config.tokens, config.width))

    def forward(self, block: int, grid: Grid) -> Tensor:
        """(prefix + N, D), to add after this block."""
        prefix, patches = self.table[block].split([self.prefix, self.table.shape[1] - self.prefix])
        return torch.cat([prefix, resample(patches, self.grid, grid, self.rule)])  # (prefix + N, D)


class RelativeBias(nn.Module):
    """BEiT: a learned number for each head and each step, rows and columns, from a patch to another, which is added to
    the attention score. Three more are for prefix tokens: from them to patches, from patches to them, among them."""

    def __init__(self, config: ViTConfig) -> None:
        super().__init__()
        self.steps, self.rule, self.prefix = steps_between(config.grid), config.resample, config.prefix
        self.table = nn.Parameter(torch.empty(self.steps[0] * self.steps[1] + 3, config.heads))

    def forward(self, grid: Grid) -> Tensor:
        """(heads, M, M): the bias of each query's score with each key."""
        return self.table_for(grid)[self.numbers(grid)].permute(2, 0, 1)

    def table_for(self, grid: Grid) -> Tensor:
        """(S + 3, heads), the steps that a grid has: another grid has more or fewer."""
        steps, prefix = self.table[:-3], self.table[-3:]
        return torch.cat([resample(steps, self.steps, steps_between(grid), self.rule), prefix])

    def numbers(self, grid: Grid) -> Tensor:
        """(M, M): for each query and key, which row of the table is theirs."""
        height, width = steps_between(grid)
        device = self.table.device
        down, across = (torch.arange(side, device=device) for side in grid)
        rows = (down[:, None] - down + grid[0] - 1).repeat_interleave(grid[1], 0).repeat_interleave(grid[1], 1)
        columns = (across[:, None] - across + grid[1] - 1).repeat(grid[0], grid[0])
        patches = rows * width + columns  # (N, N)
        numbers = F.pad(patches, (self.prefix, 0, self.prefix, 0))
        numbers[: self.prefix, self.prefix :] = height * width
        numbers[self.prefix :, : self.prefix] = height * width + 1
        numbers[: self.prefix, : self.prefix] = height * width + 2
        return numbers


def steps_between(grid: Grid) -> Grid:
    """How many steps there are from a patch to another, down and across: -(h - 1) to h - 1."""
    return 2 * grid[0] - 1, 2 * grid[1] - 1


class FixedPositions(nn.Module):
    """Sinusoids, computed anew for every grid. [CLS] has the formula's own slot 0 (1-D: PE(0), the patches follow from
    1; 2-D: zeros, for it has neither row nor column), a learned vector, or nothing."""

    def __init__(self, config: ViTConfig) -> None:
        super().__init__()
        self.two_d, self.width, self.prefix = config.positions == "sincos2d", config.width, config.prefix
        self.first = 1 if config.cls_position == "fixed" else 0
        self.with_position = config.prefix_positions
        self.table = nn.Parameter(torch.empty(self.with_position, config.width)) if self.with_position else None
        self.grid = config.grid
        self.register_buffer("native", self.compute(config.grid, CPU), persistent=False)

    def compute(self, grid: Grid, device: torch.device) -> Tensor:
        """(prefix + N, D), zeros where the position is learned or absent."""
        if self.two_d:
            return F.pad(sincos2d(grid, self.width, device), (0, 0, self.prefix, 0))
        slots = sincos1d(torch.arange(self.first + grid[0] * grid[1], device=device), self.width)
        absent = slots.new_zeros(self.prefix - self.first, self.width)
        return torch.cat([slots[: self.first], absent, slots[self.first :]])

    def forward(self, grid: Grid) -> Tensor:
        """(prefix + N, D) for a grid."""
        native: Tensor = self.native  # type: ignore[assignment]
        fixed = native if known(grid) and grid == self.grid else self.compute(grid, native.device).to(native.dtype)
        if self.table is None:
            return fixed
        return torch.cat([self.table, fixed[self.with_position :]])


class RotaryPositions(nn.Module):
    """Rotary 2-D: queries and keys of patches are turned by angles of their row and column.

    Another size or aspect needs no resampling. In DINOv3 a patch's centre in [-1, 1] on each axis is its place; in
    EVA-02 and Perception Encoder (rotary_grid) its number, scaled as if the grid had the size of pretraining. Dims i
    and i + d/2 of a head are a pair that turns: the first half of the pairs by the row, the second by the column,
    each pair of a half at its own rate. Prefix tokens are not turned.
    """

    def __init__(self, config: ViTConfig) -> None:
        super().__init__()
        self.head_dim, self.base, self.grid = config.head_dim, config.rotary_base, config.grid
        self.counted_on, self.start, self.round = config.rotary_grid, config.rotary_start, config.rotary_bfloat16
        self.register_buffer("native", self.compute(config.grid, CPU), persistent=False)

    def compute(self, grid: Grid, device: torch.device) -> Tensor:
        """(2, N, head_dim): the cosines and the sines."""
        periods = self.base ** (torch.arange(self.head_dim // 4, device=device) * 4 / self.head_dim)  # (d/4,)
        if self.round:
            periods = periods.to(torch.bfloat16).to(periods.dtype)
        rows, columns = (place[:, None] / periods for place in self.places(grid, device))  # (h, d/4), (w, d/4)
        both = [rows[:, None].expand(-1, grid[1], -1), columns[None].expand(grid[0], -1, -1)]
        angles = torch.cat(both, dim=-1).flatten(0, 1).repeat(1, 2)  # (N, d)
        return torch.stack([angles.cos(), angles.sin()])

    def places(self, grid: Grid, device: torch.device) -> list[Tensor]:
        """Where each row (h,) and each column (w,) of patches lies."""
        numbers = [torch.arange(side, device=device) for side in grid]
        if self.counted_on is None:
            return [2 * math.pi * ((n + 0.5) / side * 2 - 1) for n, side in zip(numbers, grid, strict=True)]
        scaled = zip(numbers, grid, self.counted_on, strict=True)
        return [(n + self.start) / side * counted for n, side, counted in scaled]

    def forward(self, grid: Grid) -> Tensor:
        """(2, N, head_dim) for a grid: the cosines and the sines."""
        native: Tensor = self.native  # type: ignore[assignment]
        return native if known(grid) and grid == self.grid else self.compute(grid, native.device).to(native.dtype)


def rotate(x: Tensor, rope: Tensor) -> Tensor:
    """Turn the last N of (B, heads, tokens, d) by (2, N, d); the prefix tokens before them stay."""
    cos, sin = rope.to(x.dtype)
    prefix, patches = x.split([x.shape[2] - cos.shape[0], cos.shape[0]], dim=2)
    first, second = patches.chunk(2, dim=-1)
    turned = patches * cos + torch.cat([-second, first], dim=-1) * sin
    return torch.cat([prefix, turned], dim=2)


def build_positions(config: ViTConfig) -> nn.Module | None:
    """The module that gives the added positions of a grid, (prefix + N, D), or None."""
    if config.positions == "learned":
        return LearnedPositions(config)
    return FixedPositions(config) if config.positions.startswith("sincos") else None
