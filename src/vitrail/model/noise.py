"""Dropout and drop path: what is dropped of an image follows from the key of that image.

torch's generator draws for a batch in one row, so what it drops of an image depends on how a batch is cut up among
processes. It draws here only where no keys are given, as in a training loop of one's own.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

_keys: Tensor | None = None  # one for the process, as torch's generator is


@contextmanager
def drawing_by(keys: Tensor | None) -> Iterator[None]:
    """Inside, what is drawn follows from the keys (B,), int32, of the images of the batch; None: torch's generator."""
    global _keys
    outer, _keys = _keys, keys
    try:
        yield
    finally:
        _keys = outer


def current_keys() -> Tensor | None:
    """Of the images that the network is working on."""
    return _keys


def keys_for(number: int) -> Tensor | None:
    """Other keys for a part of the network, or for a view of the images, so that it draws apart from the others."""
    return None if _keys is None else _scramble(_keys ^ number)


def drop(x: Tensor, p: float, place: int, dims: int) -> Tensor:
    """x (B, ...) with a part p of it set to 0 and the rest scaled up: one draw for each index of the first `dims` dims.

    place: a number for where in the network, so that two places draw apart. B may be a multiple of the images', where
    what belongs to one image stands together, such as its windows."""
    shape = x.shape[:dims]
    if _keys is None:
        dropped = torch.rand(shape, device=x.device) < p
    else:
        dropped = draw(_keys, math.prod(shape) // len(_keys), place) < int(p * 2**32) - 2**31
    dropped = dropped.view(*shape, *[1] * (x.dim() - dims))
    return (x / (1 - p)).masked_fill(dropped, 0.0)


def draw(keys: Tensor, count: int, place: int) -> Tensor:
    """(B, count) numbers of each image, spread evenly over all int32. keys: (B,) int32."""
    each = torch.arange(count, dtype=torch.int32, device=keys.device)
    return _scramble(_scramble(each ^ place) ^ keys[:, None])


def place_of(name: str) -> int:
    """The number of a place in the network."""
    return zlib.crc32(name.encode()) >> 1  # as much as int32 takes


class Dropout(nn.Module):
    """As torch's, and with `channels` as its Dropout2d, which drops whole maps of (B, C, H, W)."""

    def __init__(self, p: float, name: str, channels: bool = False) -> None:
        """name: of its place in the network."""
        super().__init__()
        self.p, self.place, self.channels = p, place_of(name), channels

    def forward(self, x: Tensor) -> Tensor:
        """Shape kept."""
        if not self.training or self.p == 0:
            return x
        return drop(x, self.p, self.place, 2 if self.channels else x.dim())


def _scramble(x: Tensor) -> Tensor:
    """int32 to int32, one to one, every bit of the result depending on every bit of x (the hash "lowbias32")."""
    x = (x ^ ((x >> 16) & 0xFFFF)) * 0x7FEB352D
    x = (x ^ ((x >> 15) & 0x1FFFF)) * -0x7B935975
    return x ^ ((x >> 16) & 0xFFFF)
