"""One forward and one backward pass of a fused model, with what weighted attention needs of them: each block's input,
and how the answer changes with what its attention gives."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from vitrail.explanation.looking import blocks_of
from vitrail.explanation.question import Question
from vitrail.explanation.tokens import Grid
from vitrail.model.vit import ViT


@dataclass
class Trace:
    grid: Grid
    turns: Tensor | None
    inputs: list[Tensor] = field(default_factory=list)  # (B, M, D) each
    slopes: list[Tensor] = field(
        default_factory=list
    )  # dy/dO, (B, rows, D) each: in the last block of the read tokens only
    pooled: Tensor | None = None  # (B, M, D), the pool's input; None where [CLS] is pooled
    pooled_slope: Tensor | None = None


def traced(model: ViT, images: Tensor, question: Question) -> Trace:
    """Runs the model once; the hooks that listen are gone when it is done."""
    patch = model.config.patch_size
    grid = images.shape[2] // patch[0], images.shape[3] // patch[1]
    trace = Trace(grid, None if model.rotary is None else model.rotary(grid))
    outputs: list[Tensor] = []  # O of each block, its heads side by side

    def keep_input(_: Any, arguments: tuple[Any, ...]) -> None:
        trace.inputs.append(arguments[0].detach())

    def keep_output(_: Any, arguments: tuple[Any, ...]) -> None:
        outputs.append(arguments[0])

    def keep_pooled(_: Any, arguments: tuple[Any, ...]) -> None:
        trace.pooled = arguments[0]

    hooks = [block.register_forward_pre_hook(keep_input) for block in blocks_of(model)]
    hooks += [block.attention.out.register_forward_pre_hook(keep_output) for block in blocks_of(model)]
    if model.config.pool != "cls":
        hooks.append(model.pool.register_forward_pre_hook(keep_pooled))
    try:
        with torch.enable_grad():
            score = question.score(
                model(images.detach().requires_grad_())
            ).sum()  # images do not mix, so one sum will do
    finally:
        for hook in hooks:
            hook.remove()
    wanted = outputs if trace.pooled is None else [*outputs, trace.pooled]
    slopes = list(torch.autograd.grad(score, wanted))
    if trace.pooled is not None:
        trace.pooled, trace.pooled_slope = trace.pooled.detach(), slopes.pop()
    trace.slopes = slopes
    return trace
