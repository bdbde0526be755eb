"""Which blocks and heads a caller asks for, checked and counted from 0."""

from __future__ import annotations

from collections.abc import Sequence

from vitrail.errors import VitrailError
from vitrail.model.encoder_config import EncoderConfig


def select_blocks(blocks: Sequence[int] | None, depth: int) -> list[int]:
    """Block numbers from 0, in the network's order. None: all; -1: the last."""
    numbers = range(depth) if blocks is None else blocks
    for block in numbers:
        if not -depth <= block < depth:
            raise VitrailError(f"there is no block {block}: the model has {depth}, 0 to {depth - 1}")
    return sorted({block % depth for block in numbers})


def heads_of_blocks(heads: Sequence[int] | None, config: EncoderConfig, blocks: Sequence[int]) -> list[int]:
    """The heads of these blocks. None: all, of the block that has most of them; chosen ones must be in every block."""
    counts = [config.heads_of(block) for block in blocks]
    return select_heads(heads, max(counts) if heads is None else min(counts))


def select_heads(heads: Sequence[int] | None, count: int) -> list[int]:
    """Head numbers from 0, in the caller's order. None: all; -1: the last."""
    numbers = range(count) if heads is None else heads
    for head in numbers:
        if not -count <= head < count:
            raise VitrailError(f"there is no head {head}: a block has {count}, 0 to {count - 1}")
    return [head % count for head in numbers]
