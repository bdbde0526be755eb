"""The walk: one image through one model, step by step, in the order a lecture tells it, with the real numbers.

The steps are computed with the model's own layers, one after the other, so they end in the model's own answer.
"""

# ruff: noqa: RUF001  formulas and sizes are written as people write them

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vitrail.explanation.colours import enlarged, gridded, shown_picture
from vitrail.explanation.looking import evaluated
from vitrail.explanation.steps import Figure, Step, Walk, first, matrix, mosaic, pixels, shape_of
from vitrail.explanation.tokens import Grid, prefix_names
from vitrail.explanation.walk_answer import answer_steps
from vitrail.explanation.walk_block import block_steps
from vitrail.model.patches import patchify
from vitrail.model.vit import ViT

SAMPLES = 7  # positions a side whose likeness to all others is shown, as in the ViT paper's figure


@torch.no_grad()
def walk(
    model: ViT,
    images: Tensor,
    picture: NDArray[np.uint8],
    labels: Sequence[str] | None = None,
    *,
    task: str = "classify",
    block: int = -1,
    patch: tuple[int, int] = (0, 0),
) -> Walk:
    """images: (1, C, H, W), normalised; picture: the same as uint8 (H, W, C). block: which one to go through slowly."""
    block %= model.config.depth
    with evaluated(model):
        steps, x, turns, grid = embedding_steps(model, images, picture, patch)
        place = model.config.prefix + patch[0] * grid[1] + patch[1]
        for number, layer in enumerate(model.blocks):
            if number == block:
                reader = 0 if model.config.cls_token else place
                more, x = block_steps(model, layer, number, x, turns, reader, grid)
                steps += more
            else:
                x = model.run(layer, x, turns)
            x = model.placed_again(x, number, grid)
        more, outputs = answer_steps(model, x, labels, task)
    return Walk(steps + more, block, patch, outputs[0].float().cpu().numpy())


def embedding_steps(
    model: ViT, images: Tensor, picture: NDArray[np.uint8], patch: tuple[int, int]
) -> tuple[list[Step], Tensor, Tensor | None, Grid]:
    config = model.config
    grid = images.shape[2] // config.patch_size[0], images.shape[3] // config.patch_size[1]
    number = patch[0] * grid[1] + patch[1]
    tokens = model.stem(images)  # (1, N, D)
    x, turns, _ = model.embed(images)  # (1, prefix + N, D)
    steps = [
        _patches(model, images, picture, grid, patch),
        _flattened(model, images, picture, number),
        _embedded(model, tokens, number),
    ]
    if config.prefix:
        steps.append(_prefix(model, tokens, x))
    return [*steps, _positions(model, x, turns, grid, number)], x, turns, grid


def _patches(model: ViT, images: Tensor, picture: NDArray[np.uint8], grid: Grid, patch: tuple[int, int]) -> Step:
    height, width = images.shape[2:]
    down, across = model.config.patch_size
    return Step(
        title="The image becomes patches",
        formula=f"N = H W / P² = {height} · {width} / ({down} · {across}) = {grid[0] * grid[1]}",
        shape=f"({', '.join(map(str, images.shape[1:]))}) → {grid[0]} × {grid[1]} patches",
        text=f"Non-overlapping patches of {down} × {across} pixels, read row by row. The walk follows the framed one, "
        f"in row {patch[0]}, column {patch[1]}, counted from 0: it speaks most for the answer.",
        figures=[pixels("what the model sees, cut up", gridded(picture, model.config.patch_size, patch))],
    )


def _flattened(model: ViT, images: Tensor, picture: NDArray[np.uint8], number: int) -> Step:
    config = model.config
    flat = patchify(images, config.patch_size)[:, number]  # (1, P^2 C)
    down, across = config.patch_size
    row, column = divmod(number, images.shape[3] // across)
    part = picture[row * down : (row + 1) * down, column * across : (column + 1) * across]
    strip = flat.reshape(down, across * config.channels)
    return Step(
        title="A patch becomes a list of numbers",
        formula=f"P² C = {down} · {across} · {config.channels} = {flat.shape[1]}",
        shape=f"({down}, {across}, {config.channels}) → ({flat.shape[1]},)",
        text="Its pixels, scaled as the model was trained: row by row, the channels of a pixel side by side.",
        figures=[
            pixels("the patch, enlarged", enlarged(shown_picture(part), 192)),
            matrix("its numbers, a line for each row of pixels", strip),
        ],
        numbers=("the first numbers", first(flat)),
    )


def _embedded(model: ViT, tokens: Tensor, number: int) -> Step:
    stems = {
        "linear": "One linear map, the same for every patch, no activation; a strided convolution is the same map.",
        "conv": "Small convolutions whose strides multiply to the patch size, then one linear map.",
        "features": "The features of a CNN at the patch's place, then one linear map.",
    }
    linear = model.config.stem == "linear"
    return Step(
        title="The list becomes a token",
        formula="zᵢ = xᵢ W_E + b_E" if linear else "zᵢ = fᵢ W_F + b_F",
        shape=f"({tokens.shape[1]}, {model.stem.projection.in_features}) → {shape_of(tokens)}",  # type: ignore[union-attr]
        text=stems[model.config.stem],
        figures=[matrix("all tokens: a row for each patch, a column for each of the D numbers", tokens[0])],
        numbers=("this patch's token begins", first(tokens[:, number])),
    )


def _prefix(model: ViT, tokens: Tensor, x: Tensor) -> Step:
    names = prefix_names(model.config)
    parts = [model.cls_token, model.distillation_token, model.registers]
    learned = torch.cat([part for part in parts if part is not None])  # (prefix, D)
    whose = "[CLS] belongs to no patch: it gathers what the answer needs." if model.config.cls_token else ""
    registers = " Registers give attention a place to put what belongs to no patch." if model.config.registers else ""
    return Step(
        title=f"{', '.join(names[:3])}{' …' if len(names) > 3 else ''} in front",
        formula="z = [x_cls; z₁; …; z_N]" if len(names) == 1 else "z = [prefix; z₁; …; z_N]",
        shape=f"{shape_of(tokens)} → {shape_of(x)}",
        text=f"Learned vectors, the same for every image. {whose}{registers}",
        figures=[matrix("the learned vectors, a row each", learned)],
        numbers=(f"{names[0]} begins", first(learned[0])),
    )


def _positions(model: ViT, x: Tensor, turns: Tensor | None, grid: Grid, number: int) -> Step:
    kind = model.config.positions
    if kind == "none":
        return Step("No positions", "z₀ = z", shape_of(x), "This model does not know where a patch stands.")
    likeness = position_likeness(model, turns, grid)  # (N, N)
    own = likeness[number].reshape(grid)
    words = {
        "learned": "A learned vector for each place is added.",
        "sincos1d": "A fixed vector of sines and cosines of the token's number is added.",
        "sincos2d": "A fixed vector is added: half of it tells the row, half the column.",
        "rotary": "Nothing is added: inside attention, queries and keys are turned by angles of their row and column.",
    }
    figures = [
        matrix("how alike this patch's position is to all others", own),
        Figure("the same for positions all over the grid", sampled(likeness, grid).cpu().numpy(), "signed"),
    ]
    if model.positions is not None:
        table = model.positions(grid)
        figures.insert(0, matrix("the positions, a row for each token", table))
    return Step(
        title="Positions",
        formula="z₀ = z + E_pos" if turns is None else "q′ = R(row, column) q,  k′ = R(row, column) k",
        shape=shape_of(x),
        text=words[kind] + " Likeness is the cosine: neighbours, rows and columns should show.",
        figures=figures,
    )


def position_likeness(model: ViT, turns: Tensor | None, grid: Grid) -> Tensor:
    """(N, N): cosines between position vectors; of rotary ones, how alike a vector is after both turns."""
    if turns is not None:
        cos, sin = turns.float()
        return (cos @ cos.T + sin @ sin.T) / cos.shape[1]
    assert model.positions is not None
    table = model.positions(grid)[model.config.prefix :].float()
    table = torch.nn.functional.normalize(table, dim=1)
    return table @ table.T


def sampled(likeness: Tensor, grid: Grid) -> Tensor:
    """Some rows of (N, N), each as its grid, at the place where it belongs."""
    rows, columns = (np.unique(np.linspace(0, side - 1, min(side, SAMPLES)).round().astype(int)) for side in grid)
    maps = likeness.reshape(*grid, *grid)[torch.from_numpy(rows)][:, torch.from_numpy(columns)]
    return mosaic(maps)
