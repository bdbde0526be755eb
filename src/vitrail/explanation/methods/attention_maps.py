"""Attention maps of a model that runs fused attention: recomputed from a block's input, for the chosen queries only.

Fused attention never holds its weights, and a hook cannot find them. But they follow from the block's input: one query
against all keys is a row of `M` numbers a head, so a [CLS] map costs O(N), whatever the image size. The model is not
changed; its answer is the one it gives without anybody looking.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from vitrail.explanation.forward_pass import evaluation_mode
from vitrail.explanation.methods.token_map import TokenMap, token_map
from vitrail.explanation.selection import select_blocks, select_heads
from vitrail.explanation.token_names import Query, token_index
from vitrail.model.attention import AttentionGroup
from vitrail.model.encoder import BlockStep, Encoder
from vitrail.model.positions import Grid
from vitrail.model.vit import ViT


@dataclass(frozen=True)
class AttentionMap:
    """What one query attends to in one block: `patches` and `prefix` of a head sum to 1."""

    block: int
    token: int  # the query's index in the sequence; -1 for the learned query of attention pooling
    patches: Tensor  # (B, heads, h, w)
    prefix: Tensor  # (B, heads, prefix): [CLS], distillation, registers


@torch.no_grad()
def attention_maps(
    model: Encoder,
    images: Tensor,
    query: Query = "cls",
    *,
    blocks: Sequence[int] | None = None,
    heads: Sequence[int] | None = None,
    pad: bool = False,
    steps: Sequence[BlockStep] | None = None,
) -> Iterator[AttentionMap]:
    """The maps of these blocks (None: all), one at a time, in the network's order. Later blocks are not run.

    query: "cls", "register 0", "3,4" or (3, 4) for the patch in row 3 and column 4, a number for any token's index.
    Where patches were merged, the map is that of the token that holds the patch, on the grid of its stage.
    steps: those of a forward pass over the same images, which is then not run again.
    """
    block_list, prefix, patches = select_blocks(blocks, model.depth), model.prefix, patch_grid(model, images)
    for step in _steps_of(model, images, block_list, pad, steps):
        token = token_index(query, model.config, step.grid, patches)
        [(_, rows)] = step.attention(torch.tensor([token], device=step.input.device))  # (B, heads, 1, M)
        row = rows[:, select_heads(heads, rows.shape[1]), 0]  # (B, heads, M)
        yield AttentionMap(step.index, token, row[..., prefix:].unflatten(-1, step.grid), row[..., :prefix])


@torch.no_grad()
def attention_of_all(
    model: Encoder,
    images: Tensor,
    *,
    blocks: Sequence[int] | None = None,
    pad: bool = False,
    steps: Sequence[BlockStep] | None = None,
) -> Iterator[tuple[int, list[AttentionGroup]]]:
    """Every query's row, averaged over the heads: the block's number, and groups of queries with the tokens they see,
    weights (B, R, K). That is O(N^2) in all, with windows O(N); the heads' maps are never held together.
    steps: see `attention_maps`."""
    for step in _steps_of(model, images, select_blocks(blocks, model.depth), pad, steps):
        yield step.index, [group._replace(weights=group.weights.mean(1)) for group in step.attention_groups()]


def patch_grid(model: Encoder, images: Tensor) -> Grid:
    """The patches (down, across) of images (B, C, H, W); the last ones may be padded."""
    down, across = model.config.patch_size
    return -(-images.shape[2] // down), -(-images.shape[3] // across)


@torch.no_grad()
def pool_attention(
    model: ViT, images: Tensor, *, pad: bool = False, steps: Sequence[BlockStep] | None = None
) -> AttentionMap:
    """What the learned query of attention pooling (SigLIP) attends to: such a model has no [CLS], but it has this."""
    [last] = _steps_of(model, images, [model.depth - 1], pad, steps)
    with evaluation_mode(model):
        row = model.pool_attention(model.norm_tokens(last.output))  # (B, heads, M)
    prefix, grid = model.prefix, last.result.grid
    return AttentionMap(model.depth, -1, row[..., prefix:].unflatten(-1, grid), row[..., :prefix])


def mean_of_heads(maps: AttentionMap) -> TokenMap:
    """One map a picture: (B, h, w) and (B, prefix)."""
    rows = torch.cat([maps.prefix, maps.patches.flatten(2)], dim=2)  # (B, heads, M)
    return token_map(rows.mean(1), maps.prefix.shape[2], (maps.patches.shape[2], maps.patches.shape[3]))


def _steps_of(
    model: Encoder, images: Tensor, blocks: Sequence[int], pad: bool, steps: Sequence[BlockStep] | None
) -> Iterator[BlockStep]:
    """The steps of these blocks: of a pass that was run already, or of a new one that ends with the last of them."""
    if not blocks:
        return
    if steps is not None:
        yield from (steps[index] for index in blocks)
        return
    with evaluation_mode(model):
        new_steps = model.steps(model.embed(images, pad))
        step = next(new_steps)
    while True:
        if step.index in blocks:
            yield step
        if step.index == blocks[-1]:
            return
        with evaluation_mode(model):  # not while the caller holds a step: the model is left in its own mode
            step = next(new_steps)
