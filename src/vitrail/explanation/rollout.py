"""Attention rollout (Abnar and Zuidema, 2020): attention followed through all blocks, half of each taking the
residual.

The usual code for it, copied from page to page, divides by the rows' sums without keeping their axis, discards in the
first image of a batch only, takes grids for squares with one token before them, and reads maps from a hook that fused
attention never calls. Here rows sum to 1 and so does the result, every image is treated alike, any grid and any
number of prefix tokens will do, and no map of all pairs is held: what is asked for is one row of the product of all
blocks, so a vector is carried from the last block to the first.
"""

from __future__ import annotations

import torch
from torch import Tensor

from vitrail.errors import VitrailError
from vitrail.explanation.attention import pool_weights
from vitrail.explanation.looking import TokenMap, as_map, attention_input, block_inputs, blocks_of, rows_of
from vitrail.model.vit import ViT

FUSIONS = ("mean", "max", "min")


@torch.no_grad()
def rollout(model: ViT, images: Tensor, *, fuse: str = "mean", discard: float = 0.0, pad: bool = False) -> TokenMap:
    """(B, h, w) and (B, prefix), together 1: how much of each input token is in what the head reads.

    fuse: how the heads of a block become one map. discard: this share of each row's patches, the weakest, is left out.
    """
    if fuse not in FUSIONS:
        raise VitrailError(f"fuse is {fuse!r}; choose one of {', '.join(FUSIONS)}")
    if not 0 <= discard < 1:
        raise VitrailError(f"discard is {discard}; it is a share, at least 0 and below 1")
    inputs, last, turns, grid = block_inputs(model, images, pad)
    v = read_by_head(model, last)  # (B, M)
    for block, x in zip(reversed(blocks_of(model)), reversed(inputs), strict=True):
        carried = torch.zeros_like(v)
        queries = v.any(0).nonzero()[:, 0]  # of the last block the head reads [CLS] alone
        for part, rows in rows_of(block.attention, attention_input(block, x), turns, queries):
            fused = without_weakest(fused_heads(rows, fuse), discard, model.config.prefix)  # (B, rows, M)
            carried += (v[:, None, part] @ (fused / fused.sum(dim=-1, keepdim=True)))[:, 0]
        v = (v + carried) / 2
    return as_map(v, model.config.prefix, grid)


def read_by_head(model: ViT, last: Tensor) -> Tensor:
    """(B, M), each row 1: which of the last block's tokens (B, M, D) the answer is made of, by the kind of pooling."""
    config = model.config
    v = last.new_zeros(last.shape[:2], dtype=torch.float32)
    if config.pool == "attention":
        return pool_weights(model, model.normed(last)).mean(1)
    if config.pool in ("cls", "cls_mean"):
        tokens = 1 + int(config.distillation)
        v[:, :tokens] = 1 / tokens
    if config.pool in ("mean", "cls_mean", "none"):
        v[:, config.prefix :] = 1 / (last.shape[1] - config.prefix)
    return v / v.sum(dim=1, keepdim=True)


def fused_heads(rows: Tensor, fuse: str) -> Tensor:
    """(B, heads, rows, M) -> (B, rows, M)."""
    return rows.mean(1) if fuse == "mean" else rows.amax(1) if fuse == "max" else rows.amin(1)


def without_weakest(rows: Tensor, discard: float, prefix: int) -> Tensor:
    """Zeros for the weakest patches of each row of each image; prefix tokens stay, being no part of the picture."""
    weakest = int((rows.shape[-1] - prefix) * discard)
    if not weakest:
        return rows
    places = rows[..., prefix:].topk(weakest, dim=-1, largest=False).indices + prefix
    return rows.scatter(-1, places, 0.0)
