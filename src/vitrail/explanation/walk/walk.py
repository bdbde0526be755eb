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

from vitrail.explanation.forward_pass import evaluation_mode, run_steps
from vitrail.explanation.token_names import prefix_names
from vitrail.explanation.walk.walk_answer import answer_steps
from vitrail.explanation.walk.walk_block import block_steps
from vitrail.explanation.walk.walk_steps import Figure, Step, Walk, first, matrix, mosaic, pixels, shape_of
from vitrail.explanation.walk.walk_swin import swin_steps
from vitrail.model.encoder import BlockStep, Encoder
from vitrail.model.patches import patchify
from vitrail.model.positions import Grid
from vitrail.model.swin.swin import Swin
from vitrail.model.vit import ViT
from vitrail.tasks.registry import DEFAULT_TASK
from vitrail.visuals.colours import enlarged, gridded, shown_picture

SAMPLES = 7  # positions a side whose likeness to all others is shown, as in the ViT paper's figure


@torch.no_grad()
def walk(
    model: Encoder,
    images: Tensor,
    picture: NDArray[np.uint8],
    labels: Sequence[str] | None = None,
    *,
    task: str = DEFAULT_TASK,
    block: int = -1,
    patch: tuple[int, int] = (0, 0),
    steps: Sequence[BlockStep] | None = None,
) -> Walk:
    """images: (1, C, H, W), normalised; picture: the same as uint8 (H, W, C). block: the one that is shown in detail.

    steps: those of a forward pass over the same image, which is then not run again."""
    block %= model.depth
    steps = run_steps(model, images) if steps is None else steps
    with evaluation_mode(model):
        if isinstance(model, Swin):
            shown = [*stem_steps(model, images, picture, patch), *swin_steps(model, steps, block, patch)]
        else:
            assert isinstance(model, ViT)
            shown = embedding_steps(model, images, picture, patch, steps[0])
            grid = steps[block].grid
            query = 0 if model.config.cls_token else model.prefix + patch[0] * grid[1] + patch[1]
            shown += block_steps(model, steps[block], query)[0]
        answer, outputs = answer_steps(model, steps[-1].output, labels, task)
    return Walk(shown + answer, block, patch, outputs[0].float().cpu().numpy())


def embedding_steps(
    model: ViT, images: Tensor, picture: NDArray[np.uint8], patch: tuple[int, int], first_block: BlockStep
) -> list[Step]:
    """From pixels to what the first block takes."""
    x, rope, grid = first_block.input, first_block.rope, first_block.grid  # x: (1, prefix + N, D)
    number = patch[0] * grid[1] + patch[1]
    steps, tokens = stem_steps(model, images, picture, patch), model.patch_tokens(images)  # (1, N, D)
    if (vectors := model.prefix_vectors()) is not None:
        steps.append(_prefix(model, vectors, tokens, x))
    return [*steps, _positions(model, x, rope, grid, number)]


def stem_steps(model: ViT | Swin, images: Tensor, picture: NDArray[np.uint8], patch: tuple[int, int]) -> list[Step]:
    """From pixels to a token a patch."""
    down, across = model.config.patch_size
    grid = images.shape[2] // down, images.shape[3] // across
    number = patch[0] * grid[1] + patch[1]
    return [
        _patches(model, images, picture, grid, patch),
        _flattened(model, images, picture, number),
        _embedded(model, model.patch_tokens(images), number),
    ]


def _patches(model: ViT | Swin, images: Tensor, picture: NDArray[np.uint8], grid: Grid, patch: tuple[int, int]) -> Step:
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


def _flattened(model: ViT | Swin, images: Tensor, picture: NDArray[np.uint8], number: int) -> Step:
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


def _embedded(model: ViT | Swin, tokens: Tensor, number: int) -> Step:
    stems = {
        "linear": "One linear map, the same for every patch, no activation; a strided convolution is the same map.",
        "conv": "Small convolutions whose strides multiply to the patch size, then one linear map.",
        "features": "The features of a CNN at the patch's place, then one linear map.",
    }
    stem = model.config.stem if isinstance(model, ViT) else "linear"
    linear = stem == "linear"
    return Step(
        title="The list becomes a token",
        formula="zᵢ = xᵢ W_E + b_E" if linear else "zᵢ = fᵢ W_F + b_F",
        shape=f"({tokens.shape[1]}, {model.patch_inputs}) → {shape_of(tokens)}",
        text=stems[stem] + ("" if isinstance(model, ViT) else " Then each token is normalised."),
        figures=[matrix("all tokens: a row for each patch, a column for each of the D numbers", tokens[0])],
        numbers=("this patch's token begins", first(tokens[:, number])),
    )


def _prefix(model: ViT, vectors: Tensor, tokens: Tensor, x: Tensor) -> Step:
    """vectors: (prefix, D)."""
    names = prefix_names(model.config)
    class_token = "[CLS] belongs to no patch: it gathers what the answer needs." if model.config.cls_token else ""
    registers = " Registers give attention a place to put what belongs to no patch." if model.config.registers else ""
    return Step(
        title=f"{', '.join(names[:3])}{' …' if len(names) > 3 else ''} in front",
        formula="z = [x_cls; z₁; …; z_N]" if len(names) == 1 else "z = [prefix; z₁; …; z_N]",
        shape=f"{shape_of(tokens)} → {shape_of(x)}",
        text=f"Learned vectors, the same for every image. {class_token}{registers}",
        figures=[matrix("the learned vectors, a row each", vectors)],
        numbers=(f"{names[0]} begins", first(vectors[0])),
    )


def _positions(model: ViT, x: Tensor, rope: Tensor | None, grid: Grid, number: int) -> Step:
    kind = model.config.positions
    if kind == "none":
        text = "This model does not know where a patch stands."
        if model.config.relative_bias:
            text = "Nothing is added: inside attention, a learned number for the step from patch to patch is."
        return Step("No positions", "z₀ = z", shape_of(x), text)
    likeness = position_likeness(model, rope, grid)  # (N, N)
    own = likeness[number].reshape(grid)
    words = {
        "learned": "A learned vector for each place is added.",
        "sincos1d": "A fixed vector of sines and cosines of the token's number is added.",
        "sincos2d": "A fixed vector is added: half of it tells the row, half the column.",
        "rotary": "Nothing is added: inside attention, queries and keys are turned by angles of their row and column.",
    }
    turned = " Inside attention, queries and keys are turned too." if model.config.rotary_too else ""
    figures = [
        matrix("how alike this patch's position is to all others", own),
        Figure("the same for positions all over the grid", sampled(likeness, grid).float().cpu().numpy(), "signed"),
    ]
    formulas = [] if rope is None else ["q′ = R(row, column) q", "k′ = R(row, column) k"]
    if (table := model.position_table(grid)) is not None:
        figures.insert(0, matrix("the positions, a row for each token", table))
        formulas.insert(0, "z₀ = z + E_pos")
    return Step(
        title="Positions",
        formula=",  ".join(formulas),
        shape=shape_of(x),
        text=words[kind] + turned + " Likeness is the cosine: neighbours, rows and columns should show.",
        figures=figures,
    )


def position_likeness(model: ViT, rope: Tensor | None, grid: Grid) -> Tensor:
    """(N, N): cosines between position vectors; for RoPE, between a vector as both patches turn it."""
    if rope is not None:
        cos, sin = rope.float()
        return (cos @ cos.T + sin @ sin.T) / cos.shape[1]
    table = model.position_table(grid)
    assert table is not None
    patches = torch.nn.functional.normalize(table[model.prefix :].float(), dim=1)
    return patches @ patches.T


def sampled(likeness: Tensor, grid: Grid) -> Tensor:
    """Evenly chosen rows of (N, N), each drawn as a map (h, w), in a mosaic by the position of their patches."""
    rows, columns = (np.unique(np.linspace(0, side - 1, min(side, SAMPLES)).round().astype(int)) for side in grid)
    maps = likeness.reshape(*grid, *grid)[torch.from_numpy(rows)][:, torch.from_numpy(columns)]
    return mosaic(maps)
