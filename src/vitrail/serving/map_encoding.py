"""Attention maps as uint8 with a scale for each row, and the binary format in which answers are sent."""

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

from vitrail.model.encoder import BlockStep, Encoder
from vitrail.serving.http_errors import unprocessable

MAX_MAP_BYTES = 64_000_000  # bytes of maps in an answer: 6 heads of 3,137 tokens


@dataclass(frozen=True)
class Maps:
    levels: NDArray[np.uint8]  # (heads, queries, M): of a row the largest is 255
    scale: NDArray[np.float32]  # (heads, queries): what 255 stands for
    prefix: NDArray[np.float32]  # (heads, queries, prefix): [CLS] and registers, not rounded, for they can be tiny

    def parts(self, name: str = "") -> dict[str, NDArray[Any] | bytes]:
        """By their names in a response: maps, scale, prefix; with a name: NAME, NAME_scale, NAME_prefix."""
        names = (name, f"{name}_scale", f"{name}_prefix") if name else ("maps", "scale", "prefix")
        return dict(zip(names, (self.levels, self.scale, self.prefix), strict=True))

    def values(self) -> NDArray[np.float32]:
        return self.levels * (self.scale[..., None] / np.float32(255))


def attention_maps_of(
    model: Encoder, step: BlockStep, *, queries: Sequence[int] | None = None, heads: Sequence[int] | None = None
) -> Maps:
    """Of one image's block: the rows of these queries (None: of all) in these heads (None: in all)."""
    tokens = step.input.shape[1]
    count = tokens if queries is None else len(queries)
    head_list = list(range(model.config.heads_of(step.index))) if heads is None else list(heads)
    if len(head_list) * count * tokens > MAX_MAP_BYTES:
        raise unprocessable(f"maps of {tokens:,} tokens are too large for one answer: ask /v1/attention for one query")
    query_tokens = None if queries is None else torch.tensor(queries, device=step.input.device)
    parts = [_levels(rows[0, head_list], model.prefix) for _, rows in step.attention(query_tokens)]
    return Maps(*(torch.cat(arrays, dim=1).numpy() for arrays in zip(*parts, strict=True)))


def decoder_query_maps(model: Encoder, attention: Tensor) -> Maps:
    """Of a box decoder's queries (heads, Q, N), in the form of the others. They see patches only."""
    rows = torch.nn.functional.pad(attention, (model.prefix, 0))  # (heads, Q, prefix + N)
    return Maps(*(array.numpy() for array in _levels(rows, model.prefix)))


def _levels(rows: Tensor, prefix: int) -> tuple[Tensor, Tensor, Tensor]:
    """Rows (heads, queries, M), their scales, and the prefix alone, each as `Maps` keeps it."""
    scale = rows.amax(dim=-1)
    levels = (rows * (255 / scale[..., None])).round_().byte()
    return levels.cpu(), scale.cpu(), rows[..., :prefix].cpu()


def pack_parts(header: dict[str, Any], parts: dict[str, NDArray[Any] | bytes]) -> bytes:
    """A length, a JSON header, then the parts one after the other; `docs/serve.md` tells how to read it.

    Arrays lie row by row, little-endian, each at a multiple of 4 bytes. A part of plain bytes is a JPEG.
    """
    part_list, blobs, offset = [], [], 0
    for name, part in parts.items():
        blob = part if isinstance(part, bytes) else np.ascontiguousarray(part).tobytes()
        dtype = "jpeg" if isinstance(part, bytes) else part.dtype.name
        shape = [len(blob)] if isinstance(part, bytes) else list(part.shape)
        part_list.append({"name": name, "dtype": dtype, "shape": shape, "offset": offset, "bytes": len(blob)})
        blob += b"\0" * (-len(blob) % 4)  # so that a browser can look at float32 without copying
        blobs.append(blob)
        offset += len(blob)
    text = json.dumps({**header, "parts": part_list}, allow_nan=False, separators=(",", ":")).encode("ascii")
    text += b" " * (-len(text) % 4)
    return b"".join([struct.pack("<I", len(text)), text, *blobs])
