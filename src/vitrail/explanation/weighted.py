"""Gradient-weighted attention for one answer (Chefer, Gur and Wolf, 2021), followed through all blocks.

In each block attention is weighted by how the answer would change with it, what speaks against the answer is left
out, and heads are averaged: E_h[(dy/dA * A)+]. Relevance flows back through it and through the residual.

The authors' code keeps every block's map and its gradient, N x N for each head. Neither is needed: the slope of the
answer with respect to a map is dy/dA = (dy/dO) V^T, where O = A V is what fused attention gives and its backward pass
knows. So the model runs fused, both factors are recomputed for some rows at a time, and only one row of the product
is carried along.

It adds slopes to the residual's 1, which have no common scale. With [CLS] that does not matter, for the residual's
part stays there; of a mean over patches it drowns the rest, and `relevance` is the better one (see `vitrail explain
--compare`).
"""

from __future__ import annotations

import torch
from torch import Tensor

from vitrail.explanation.looking import ROWS, TokenMap, as_map, attention_input, blocks_of, evaluated, weights
from vitrail.explanation.question import Question
from vitrail.explanation.tracing import Trace, traced
from vitrail.model.attention import SelfAttention
from vitrail.model.vit import ViT


def weighted_attention(model: ViT, images: Tensor, question: Question) -> TokenMap:
    """(B, h, w) and (B, prefix), each image's sum 1: where the attention that helps the answer leads."""
    with evaluated(model):
        trace = traced(model, images, question)
        with torch.no_grad():
            v = start(model, trace)  # (B, M)
            for block, x, slope in zip(reversed(blocks_of(model)), trace.inputs[::-1], trace.slopes[::-1], strict=True):
                v = v + passed_on(v, block.attention, attention_input(block, x), trace.turns, slope)
    prefix = model.config.prefix
    patches = v[:, prefix:]
    whole = patches.sum(1, keepdim=True)
    # An answer for which nothing speaks gets an even map: no patch is told to matter more than another.
    patches = torch.where(whole > 0, patches, torch.ones_like(patches))
    v = torch.cat([v[:, :prefix], patches], dim=1)
    return as_map(v / v.sum(1, keepdim=True), prefix, trace.grid)


def passed_on(v: Tensor, attention: SelfAttention, x: Tensor, turns: Tensor | None, slope: Tensor) -> Tensor:
    """v E_h[(dy/dA * A)+] for v (B, M), of the rows that the answer depends on: slope (B, rows, D) is their dy/dO."""
    q, k, values = attention.project(x, turns, None)  # (B, heads, M, d)
    slope = slope.unflatten(2, (attention.heads, attention.head_dim)).transpose(1, 2).float()  # (B, heads, rows, d)
    carried = torch.zeros_like(v)
    for part in torch.arange(slope.shape[2], device=v.device).split(ROWS):
        change = slope[:, :, part] @ values.float().transpose(-2, -1)  # (B, heads, rows, M), dy/dA
        matters = (weights(q[:, :, part], k) * change).clamp(min=0).mean(1)  # (B, rows, M)
        carried += (v[:, None, part] @ matters)[:, 0]
    return carried


def start(model: ViT, trace: Trace) -> Tensor:
    """(B, M), each row 1: what the answer reads. [CLS] where that is pooled; else each token's share of the answer.

    The share is the token times its slope, as far as it speaks for the answer: without [CLS] every patch is read, and
    starting from all of them alike would tell of the picture, not of the answer.
    """
    v = trace.inputs[0].new_zeros(trace.inputs[0].shape[:2], dtype=torch.float32)
    if trace.pooled is None or trace.pooled_slope is None:
        v[:, : 1 + int(model.config.distillation)] = 1.0
    else:
        v[:] = (trace.pooled * trace.pooled_slope).float().sum(-1).clamp(min=0)
        v[v.sum(1) == 0] = 1.0
    return v / v.sum(1, keepdim=True)
