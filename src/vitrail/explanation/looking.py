"""What every look inside does the same way: the model as it answers, left as it was found."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor, nn

from vitrail.errors import VitrailError
from vitrail.explanation.tokens import Grid
from vitrail.model.attention import SelfAttention
from vitrail.model.block import Block
from vitrail.model.vit import ViT

ROWS = 256  # queries at a time: a map of all tokens is never held as a whole


@dataclass(frozen=True)
class TokenMap:
    """One number a token: those of the patches as a grid, and those of the prefix tokens ([CLS], registers)."""

    patches: Tensor  # (B, h, w)
    prefix: Tensor  # (B, prefix)


@contextlib.contextmanager
def evaluated(model: nn.Module) -> Iterator[None]:
    """Without dropout and drop path for a while; afterwards every module is in the mode it was in."""
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        yield
    finally:
        for module, mode in modes:
            module.training = mode


def chosen_blocks(blocks: Sequence[int] | None, depth: int) -> list[int]:
    """The asked blocks as places from 0 in their order in the network; None: all; -1: the last."""
    asked = range(depth) if blocks is None else blocks
    for block in asked:
        if not -depth <= block < depth:
            raise VitrailError(f"there is no block {block}: the model has {depth}, 0 to {depth - 1}")
    return sorted({block % depth for block in asked})


def chosen_heads(heads: Sequence[int] | None, count: int) -> list[int]:
    asked = list(range(count) if heads is None else heads)
    for head in asked:
        if not -count <= head < count:
            raise VitrailError(f"there is no head {head}: a block has {count}, 0 to {count - 1}")
    return [head % count for head in asked]


def blocks_of(model: ViT) -> list[Block]:
    """The blocks with their type, which nn.ModuleList forgets."""
    return cast(list[Block], list(model.blocks))


def attention_input(block: Block, x: Tensor) -> Tensor:
    """What a block's attention sees of the block's input: pre-norm blocks normalise first."""
    return block.norm1(x) if block.pre else x


def weights(q: Tensor, k: Tensor) -> Tensor:
    """softmax(Q K^T / sqrt(d)) for q (B, heads, Q, d), k (B, heads, M, d), in float32 whatever the model is in."""
    return (q.float() * q.shape[-1] ** -0.5 @ k.float().transpose(-2, -1)).softmax(dim=-1)  # (B, heads, Q, M)


def rows_of(
    attention: SelfAttention, x: Tensor, turns: Tensor | None, queries: Tensor
) -> Iterator[tuple[Tensor, Tensor]]:
    """The asked rows (Q,) of a block's attention, some at a time: their places, and (B, heads, rows, M)."""
    q, k, _ = attention.project(x, turns, None)  # (B, heads, M, d)
    for part in queries.split(ROWS):
        yield part, weights(q[:, :, part], k)


@torch.no_grad()
def block_inputs(model: ViT, images: Tensor, pad: bool = False) -> tuple[list[Tensor], Tensor, Tensor | None, Grid]:
    """What each block takes and what the last one gives, (B, M, D) each; rotary turns; the grid. Memory is O(L N D)."""
    with evaluated(model):
        x, turns, grid = model.embed(images, pad)
        inputs = []
        for block in blocks_of(model):
            inputs.append(x)
            x = model.run(block, x, turns)
    return inputs, x, turns, grid


def as_map(values: Tensor, prefix: int, grid: Grid) -> TokenMap:
    """(B, M) -> its two parts."""
    return TokenMap(values[:, prefix:].unflatten(1, grid), values[:, :prefix])
