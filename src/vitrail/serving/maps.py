"""Attention maps of one block for every query, small enough to be sent, and the form in which they travel."""

from __future__ import annotations

import json
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vitrail.explanation.looking import attention_input, blocks_of, rows_of
from vitrail.model.vit import ViT
from vitrail.serving.refusals import unfit

MOST = 64_000_000  # bytes of maps in an answer: 6 heads of 3,137 tokens


@dataclass(frozen=True)
class Maps:
    levels: NDArray[np.uint8]  # (heads, queries, M): of a row the largest is 255
    scale: NDArray[np.float32]  # (heads, queries): what 255 stands for

    prefix: NDArray[np.float32]  # (heads, queries, prefix): [CLS] and registers, not rounded, for they can be tiny

    def parts(self, name: str = "") -> dict[str, NDArray[Any] | bytes]:
        """Named maps, scale and prefix, or, of something else, after it."""
        names = (name, f"{name}_scale", f"{name}_prefix") if name else ("maps", "scale", "prefix")
        return dict(zip(names, (self.levels, self.scale, self.prefix), strict=True))

    def values(self) -> NDArray[np.float32]:
        return self.levels * (self.scale[..., None] / np.float32(255))


def maps_of(
    model: ViT,
    block: int,
    tokens: Tensor,
    turns: Tensor | None,
    *,
    queries: Sequence[int] | None = None,
    heads: Sequence[int] | None = None,
) -> Maps:
    """From what the block takes, (M, D): the rows of these queries (None: of all) in these heads (None: in all)."""
    count = len(tokens) if queries is None else len(queries)
    chosen = list(range(model.config.heads)) if heads is None else list(heads)
    if len(chosen) * count * len(tokens) > MOST:
        raise unfit(f"maps of {len(tokens):,} tokens are too large for one answer: ask /v1/attention for one query")
    layer = blocks_of(model)[block]
    asked = torch.arange(len(tokens)) if queries is None else torch.tensor(queries)
    parts = []
    for _, rows in rows_of(layer.attention, attention_input(layer, tokens[None]), turns, asked.to(tokens.device)):
        parts.append(_levels(rows[0, chosen], model.config.prefix))
    return Maps(*(torch.cat(found, dim=1).numpy() for found in zip(*parts, strict=True)))


def maps_of_queries(model: ViT, attention: Tensor) -> Maps:
    """Of a box decoder's queries (heads, Q, N), in the form of the others. They see patches only."""
    whole = torch.nn.functional.pad(attention, (model.config.prefix, 0))
    return Maps(*(found.numpy() for found in _levels(whole, model.config.prefix)))


def _levels(rows: Tensor, prefix: int) -> tuple[Tensor, Tensor, Tensor]:
    """Rows (heads, queries, M), their scales, and the prefix alone, each as `Maps` keeps it."""
    scale = rows.amax(dim=-1)
    levels = (rows * (255 / scale[..., None])).round_().byte()
    return levels.cpu(), scale.cpu(), rows[..., :prefix].cpu()


def packed(header: dict[str, Any], parts: dict[str, NDArray[Any] | bytes]) -> bytes:
    """A length, a JSON header, then the parts one after the other; `docs/serve.md` tells how to read it.

    Arrays lie row by row, little-endian, each at a multiple of 4 bytes. A part of plain bytes is a JPEG.
    """
    listed, blobs, offset = [], [], 0
    for name, part in parts.items():
        blob = part if isinstance(part, bytes) else np.ascontiguousarray(part).tobytes()
        kind = "jpeg" if isinstance(part, bytes) else part.dtype.name
        shape = [len(blob)] if isinstance(part, bytes) else list(part.shape)
        listed.append({"name": name, "dtype": kind, "shape": shape, "offset": offset, "bytes": len(blob)})
        blob += b"\0" * (-len(blob) % 4)  # so that a browser can look at float32 without copying
        blobs.append(blob)
        offset += len(blob)
    text = json.dumps({**header, "parts": listed}, allow_nan=False, separators=(",", ":")).encode("ascii")
    text += b" " * (-len(text) % 4)
    return b"".join([struct.pack("<I", len(text)), text, *blobs])
