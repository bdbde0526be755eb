"""Two layouts of rotary positions are one network: the dims of queries and keys change places in the weights.

Ours turns dims i and i + d/2 of a head together, the first half of these pairs by the row (DINOv3). EVA's code turns
neighbours, 2i and 2i + 1, and Perception Encoder's has the columns first. A score q k is a sum over dims, so their
order is free as long as queries and keys have the same.
"""

from __future__ import annotations

import re
from collections.abc import Callable

import torch
from torch import Tensor

QUERIES_AND_KEYS = r"^blocks\.\d+\.(attn|attention)\.(qkv\.(weight|bias)|[qk]_norm\.(weight|bias))$"


def from_neighbours(tensors: dict[str, Tensor], heads: int, columns_first: bool) -> dict[str, Tensor]:
    """Tensors of a network that turns neighbouring dims, as ours has them."""
    return _reordered(tensors, heads, lambda dims: _order(dims, columns_first))


def to_neighbours(tensors: dict[str, Tensor], heads: int) -> dict[str, Tensor]:
    """The way back, rows first."""
    return _reordered(tensors, heads, lambda dims: _order(dims, columns_first=False).argsort())


def _order(dims: int, columns_first: bool) -> Tensor:
    """For each dim of our heads, its place in theirs."""
    pairs = torch.arange(dims // 2)
    if columns_first:
        pairs = torch.cat([pairs[dims // 4 :], pairs[: dims // 4]])
    return torch.cat([2 * pairs, 2 * pairs + 1])


def _reordered(tensors: dict[str, Tensor], heads: int, order_of: Callable[[int], Tensor]) -> dict[str, Tensor]:
    reordered = dict(tensors)
    for name, tensor in tensors.items():
        if not re.match(QUERIES_AND_KEYS, name) or not tensor.dim():
            continue
        if ".qkv." not in name:  # a norm over the dims of one head
            reordered[name] = tensor[order_of(len(tensor))]
        elif len(tensor) % (12 * heads) == 0:  # else the shapes do not fit, which is said when they are compared
            q, k, v = tensor.chunk(3)
            order = order_of(len(q) // heads)
            turned = [part.unflatten(0, (heads, -1))[:, order].flatten(0, 1) for part in (q, k)]
            reordered[name] = torch.cat([*turned, v])
    return reordered
