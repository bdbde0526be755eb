"""Gradient-weighted attention for one answer (Chefer, Gur and Wolf, 2021), followed through all blocks.

In each block attention is weighted by the gradient of the answer, what speaks against the answer is left out, and
heads are averaged: E_h[(dy/dA * A)+]. Relevance flows back through it and through the residual.

The authors' code keeps every block's map and its gradient, N x N for each head. Neither is needed: the gradient with
respect to a map is dy/dA = (dy/dO) V^T, where O = A V is what fused attention gives and its backward pass knows. So
the model runs fused, both factors are recomputed for some rows at a time, and only one row of the product is carried
along.

It adds gradients to the residual's 1, and gradients have no common scale. With [CLS] that does not matter, for the
residual's part stays there; of a mean over patches it drowns the rest, and `relevance` is the better one (see
`vitrail explain --compare`).
"""

from __future__ import annotations

import torch
from torch import Tensor

from vitrail.explanation.forward_pass import ForwardPass, run_forward_pass
from vitrail.explanation.methods.merging import merged_into, parts_in_merged, share_out
from vitrail.explanation.methods.token_map import TokenMap, token_map
from vitrail.explanation.target_score import TargetScore
from vitrail.model.encoder import BlockStep, Encoder


def weighted_attention(
    model: Encoder, images: Tensor, target: TargetScore, forward_pass: ForwardPass | None = None
) -> TokenMap:
    """(B, h, w) and (B, prefix), each image's sum 1: where the attention that helps the answer leads.

    forward_pass: over the same images; it is then not run again."""
    forward_pass = forward_pass or run_forward_pass(model, images)
    steps, normed = forward_pass.steps, forward_pass.normed
    score = target.score(forward_pass.outputs).sum()  # images do not mix, so one sum will do
    heads_outputs = [step.heads_output for step in steps if step.heads_output is not None]
    inside = [*heads_outputs, *(step.input for step in steps), normed]
    *gradients, normed_gradient = torch.autograd.grad(score, inside, retain_graph=True)
    heads_gradients, input_gradients = gradients[: len(steps)], gradients[len(steps) :]
    with torch.no_grad():
        v = start(model, normed, normed_gradient)  # (B, M)
        for step in reversed(steps):
            v = v + passed_on(v, step, heads_gradients[step.index])
            before = steps[step.index - 1] if step.index else step
            if before.grid != step.grid:  # patches were merged: each part has its share in the answer
                parts = parts_in_merged(model, before, step, input_gradients[step.index]).clamp(min=0)
                v = share_out(v, parts, merged_into(before.grid, step.grid, v.device))
        patches = v[:, model.prefix :]
        # An answer for which nothing speaks gets an even map: no patch matters more than another.
        patches = torch.where(patches.sum(1, keepdim=True) > 0, patches, torch.ones_like(patches))
        v = torch.cat([v[:, : model.prefix], patches], dim=1)
        return token_map(v / v.sum(1, keepdim=True), model.prefix, steps[0].grid)


def passed_on(v: Tensor, step: BlockStep, gradient: Tensor) -> Tensor:
    """v E_h[(dy/dA * A)+] for v (B, M). gradient (B, M, D): dy/dO, the heads side by side."""
    values = step.qkv()[2].float()  # (B, heads, M, d)
    gradient = gradient.unflatten(2, (values.shape[1], values.shape[3])).transpose(1, 2).float()  # (B, heads, M, d)
    carried = torch.zeros_like(v)
    for queries, keys, weights in step.attention_groups(v.any(0).nonzero()[:, 0]):  # other rows are multiplied by 0
        attention_gradient = gradient[:, :, queries] @ values[:, :, keys].transpose(-2, -1)  # (B, heads, R, K), dy/dA
        weighted = (weights * attention_gradient).clamp(min=0).mean(1)  # (B, R, K)
        carried[:, keys] += (v[:, None, queries] @ weighted)[:, 0]
    return carried


def start(model: Encoder, normed: Tensor, gradient: Tensor) -> Tensor:
    """(B, M), each row 1: what the answer reads. [CLS] where that is pooled; else each token's share of the answer.

    The share is the token times its gradient, as far as it speaks for the answer: without [CLS] every patch is read,
    and starting from all of them alike would describe the picture, not the answer. normed, gradient: (B, M, D).
    """
    if model.config.pool == "cls":
        return model.pool_weights(normed)
    v = (normed * gradient).float().sum(-1).clamp(min=0)
    v[v.sum(1) == 0] = 1.0
    return v / v.sum(1, keepdim=True)
