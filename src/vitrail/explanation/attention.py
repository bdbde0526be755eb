"""Attention maps of a model that runs fused attention: recomputed from a block's input, for the asked queries only.

Fused attention never has the map, and a hook cannot find it. But it follows from the block's input: one query against
all keys is a row of `M` numbers a head, so that a [CLS] map costs O(N), whatever the image size. The model is not
changed, not switched, not hooked; its answer is the one it gives without anybody looking.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from vitrail.errors import VitrailError
from vitrail.explanation.looking import (
    TokenMap,
    as_map,
    attention_input,
    blocks_of,
    chosen_blocks,
    chosen_heads,
    evaluated,
    rows_of,
    weights,
)
from vitrail.explanation.tokens import Query, token_of
from vitrail.model.vit import ViT


@dataclass(frozen=True)
class AttentionMap:
    """What one query attends to in one block: `patches` and `prefix` of a head sum to 1."""

    block: int
    token: int  # the query's place in the sequence
    patches: Tensor  # (B, heads, h, w)
    prefix: Tensor  # (B, heads, prefix): [CLS], distillation, registers


@torch.no_grad()
def attention_maps(
    model: ViT,
    images: Tensor,
    query: Query = "cls",
    *,
    blocks: Sequence[int] | None = None,
    heads: Sequence[int] | None = None,
    pad: bool = False,
) -> Iterator[AttentionMap]:
    """The asked blocks' maps (None: all), one at a time, in the order of the network. The rest of it is not run.

    query: "cls", "register 0", "3,4" or (3, 4) for the patch in row 3 and column 4, a number for any token's place.
    """
    asked, chosen = chosen_blocks(blocks, model.config.depth), chosen_heads(heads, model.config.heads)
    with evaluated(model):
        x, turns, grid = model.embed(images, pad)
    token = token_of(query, model.config, grid)
    here = torch.tensor([token], device=x.device)
    for number, block in enumerate(blocks_of(model)[: asked[-1] + 1] if asked else ()):
        if number in asked:
            [(_, rows)] = rows_of(block.attention, attention_input(block, x), turns, here)  # (B, heads, 1, M)
            row = rows[:, chosen, 0]  # (B, heads, M)
            prefix = model.config.prefix
            yield AttentionMap(number, token, row[..., prefix:].unflatten(-1, grid), row[..., :prefix])
        if number < asked[-1]:
            with evaluated(model):
                x = model.placed_again(model.run(block, x, turns), number, grid)


@torch.no_grad()
def attention_of_all(
    model: ViT, images: Tensor, *, blocks: Sequence[int] | None = None, pad: bool = False
) -> Iterator[tuple[int, Tensor]]:
    """Every query's row, averaged over the heads: the block's number and (B, M, M). This one costs O(N^2), a block at a
    time; the heads are never held together."""
    asked = chosen_blocks(blocks, model.config.depth)
    with evaluated(model):
        x, turns, grid = model.embed(images, pad)
    everyone = torch.arange(x.shape[1], device=x.device)
    for number, block in enumerate(blocks_of(model)[: asked[-1] + 1] if asked else ()):
        if number in asked:
            parts = rows_of(block.attention, attention_input(block, x), turns, everyone)
            yield number, torch.cat([rows.mean(1) for _, rows in parts], dim=1)
        if number < asked[-1]:
            with evaluated(model):
                x = model.placed_again(model.run(block, x, turns), number, grid)


@torch.no_grad()
def pool_attention(model: ViT, images: Tensor, *, pad: bool = False) -> AttentionMap:
    """What the learned query of attention pooling (SigLIP) looks at: such a model has no [CLS], but it has this."""
    pool = model.pool.attention
    if pool is None:
        raise VitrailError(f"this model pools by {model.config.pool!r}: only pool 'attention' has a query of its own")
    with evaluated(model):
        x, turns, grid = model.embed(images, pad)
        for number, block in enumerate(model.blocks):
            x = model.placed_again(model.run(block, x, turns), number, grid)
        row = pool_weights(model, model.normed(x))  # (B, heads, M)
    prefix = model.config.prefix
    return AttentionMap(model.config.depth, -1, row[..., prefix:].unflatten(-1, grid), row[..., :prefix])


def pool_weights(model: ViT, x: Tensor) -> Tensor:
    """(B, M, D), the pool's input -> (B, heads, M)."""
    pool = model.pool.attention
    assert pool is not None
    batch, tokens, width = x.shape
    q = pool.q(pool.query).reshape(1, 1, pool.heads, pool.head_dim).transpose(1, 2)  # (1, heads, 1, d)
    k = pool.kv(x)[..., :width].reshape(batch, tokens, pool.heads, pool.head_dim).transpose(1, 2)  # (B, heads, M, d)
    return weights(q, k)[:, :, 0]


def mean_of_heads(found: AttentionMap) -> TokenMap:
    return as_map(
        torch.cat([found.prefix, found.patches.flatten(2)], dim=2).mean(1), found.prefix.shape[2], _grid(found)
    )


def _grid(found: AttentionMap) -> tuple[int, int]:
    return found.patches.shape[-2], found.patches.shape[-1]
