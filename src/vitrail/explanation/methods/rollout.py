"""Attention rollout (Abnar and Zuidema, 2020): attention followed through all blocks, half of each taking the
residual.

The usual code for it, copied from page to page, divides by the rows' sums without keeping their axis, discards in the
first image of a batch only, takes grids for squares with one token before them, and reads maps from a hook that fused
attention never calls. Here rows sum to 1 and so does the result, every image is treated alike, any grid and any
number of prefix tokens will do, and no map of all pairs is held: the result is one row of the product of all blocks,
so a vector is carried from the last block to the first. Where patches were merged, all parts get the same.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from vitrail.errors import VitrailError
from vitrail.explanation.forward_pass import evaluation_mode, run_steps
from vitrail.explanation.methods.merging import merged_into, share_out
from vitrail.explanation.methods.token_map import TokenMap, token_map
from vitrail.model.encoder import BlockStep, Encoder

FUSIONS = ("mean", "max", "min")


@torch.no_grad()
def rollout(
    model: Encoder,
    images: Tensor,
    *,
    fuse: str = "mean",
    discard: float = 0.0,
    pad: bool = False,
    steps: Sequence[BlockStep] | None = None,
) -> TokenMap:
    """(B, h, w) and (B, prefix), together 1: how much of each input token is in what the head reads.

    fuse: how the heads of a block become one map. discard: this share of each row's patches, the weakest, is left out.
    steps: those of a forward pass over the same images, which is then not run again.
    """
    if fuse not in FUSIONS:
        raise VitrailError(f"fuse is {fuse!r}; choose one of {', '.join(FUSIONS)}")
    if not 0 <= discard < 1:
        raise VitrailError(f"discard is {discard}; it is a share, at least 0 and below 1")
    steps = run_steps(model, images, pad) if steps is None else steps
    with evaluation_mode(model):
        v = model.pool_weights(model.norm_tokens(steps[-1].output))  # (B, M)
    for step in reversed(steps):
        carried = torch.zeros_like(v)
        queries = v.any(0).nonzero()[:, 0]  # of the last block the head reads [CLS] alone
        for part, keys, rows in step.attention_groups(queries):
            fused = drop_weakest(fuse_heads(rows, fuse), discard, model.prefix)  # (B, rows, K)
            carried[:, keys] += (v[:, None, part] @ (fused / fused.sum(dim=-1, keepdim=True)))[:, 0]
        v = (v + carried) / 2
        before = steps[step.index - 1] if step.index else step
        if before.grid != step.grid:
            owners = merged_into(before.grid, step.grid, v.device)
            v = share_out(v, torch.ones_like(before.output[..., 0], dtype=v.dtype), owners)
    return token_map(v, model.prefix, steps[0].grid)


def fuse_heads(rows: Tensor, fuse: str) -> Tensor:
    """(B, heads, rows, M) -> (B, rows, M)."""
    return rows.mean(1) if fuse == "mean" else rows.amax(1) if fuse == "max" else rows.amin(1)


def drop_weakest(rows: Tensor, discard: float, prefix: int) -> Tensor:
    """Zeros for the weakest patches of each row of each image; prefix tokens stay, being no part of the picture."""
    weakest = int((rows.shape[-1] - prefix) * discard)
    if not weakest:
        return rows
    tokens = rows[..., prefix:].topk(weakest, dim=-1, largest=False).indices + prefix
    return rows.scatter(-1, tokens, 0.0)
