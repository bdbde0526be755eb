"""From a grid to the finer one that was merged into it: what a merged token has is shared out among its parts."""

from __future__ import annotations

import torch
from torch import Tensor

from vitrail.explanation.methods.relevance import DetachedDecisions
from vitrail.model.encoder import BlockStep, Encoder
from vitrail.model.positions import Grid


def merged_into(fine: Grid, coarse: Grid, device: torch.device | None = None) -> Tensor:
    """(N,): for each token of the finer grid the number of the token that holds it in the coarser one."""
    rows, columns = (
        torch.arange(tokens, device=device) // -(-tokens // cells) for tokens, cells in zip(fine, coarse, strict=True)
    )
    return (rows[:, None] * coarse[1] + columns).flatten()


def share_out(v: Tensor, parts: Tensor, owners: Tensor) -> Tensor:
    """v (B, coarse), shared among the tokens that were merged in proportion to parts (B, fine), none below 0; evenly
    where all are 0. owners: as `merged_into` gives them. -> (B, fine), with the same sum."""
    parts = torch.where(_sums(parts, owners, v)[:, owners] > 0, parts, 1.0)
    return v[:, owners] * parts / _sums(parts, owners, v)[:, owners]


def parts_in_merged(model: Encoder, before: BlockStep, after: BlockStep, gradient: Tensor) -> Tensor:
    """(B, fine): what each token adds to the answer through the token it was merged into. Merging is linear but for
    the scale of its norm, which is held constant.

    before, after: the steps on both sides of the merging; gradient: of the answer at `after.input`, (B, coarse, D).
    """
    tokens = before.output.detach().requires_grad_()
    with torch.enable_grad(), DetachedDecisions():
        merged = model.before_block(after.index, before.result._replace(tokens=tokens)).tokens
    (slope,) = torch.autograd.grad(merged, tokens, gradient.to(merged.dtype))
    return (tokens.detach() * slope).float().sum(-1)


def _sums(parts: Tensor, owners: Tensor, like: Tensor) -> Tensor:
    return torch.zeros_like(like).index_add_(1, owners, parts.to(like.dtype))
