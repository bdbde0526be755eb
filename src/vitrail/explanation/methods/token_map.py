"""One number for each token, as most methods give it."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from vitrail.model.positions import Grid


@dataclass(frozen=True)
class TokenMap:
    """The numbers of the patches as a grid, and those of the prefix tokens ([CLS], registers)."""

    patches: Tensor  # (B, h, w)
    prefix: Tensor  # (B, prefix)


def token_map(values: Tensor, prefix: int, grid: Grid) -> TokenMap:
    """(B, prefix + N) -> its two parts."""
    return TokenMap(values[:, prefix:].unflatten(1, grid), values[:, :prefix])
