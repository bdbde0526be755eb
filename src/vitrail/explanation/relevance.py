"""Relevance for one answer: what each patch adds to it, while everything that decides is held still.

A ViT is linear but for its decisions: where attention looks, how a norm scales a token, how far a GELU opens. Held at
the values they have for this image, they leave a linear map from tokens to the answer, and a linear map is a sum over
tokens: each patch's part is (token - token of a blank patch) * slope. The parts are signed, have the unit of the
answer, need one forward and one backward pass, and attention stays fused: memory is O(N).

The plain gradient also asks how the decisions would change under a tiny step, which says little about the patch and
is mostly noise. The idea of cutting that out is that of layer-wise relevance propagation for transformers (Ali et
al., 2022; AttnLRP, 2024; LibraGrad, 2025). `vitrail explain --compare` measures whether it pays for your model and
picture.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode

from vitrail.explanation.looking import evaluated
from vitrail.explanation.question import Question, blank
from vitrail.model.vit import ViT


def relevance(model: ViT, images: Tensor, question: Question) -> Tensor:
    """(B, h, w): each patch's part in the score, positive where it speaks for the answer, negative where against it."""
    with evaluated(model):
        tokens, slope = held_slope(model, images, question)
        with torch.no_grad():
            nothing, _, grid = model.embed(blank(images))
    parts = ((tokens - nothing) * slope).float().sum(-1)  # (B, M); 0 for prefix tokens, which no picture changes
    return parts[:, model.config.prefix :].unflatten(1, grid)


def held_slope(model: ViT, images: Tensor, question: Question) -> tuple[Tensor, Tensor]:
    """What the first block takes, (B, M, D), and the slope of the score there with all decisions held still."""
    taken: list[Tensor] = []

    def take(_: Any, arguments: tuple[Any, ...]) -> tuple[Any, ...]:
        taken.append(arguments[0].detach().requires_grad_())
        return (taken[0], *arguments[1:])

    hook = model.blocks[0].register_forward_pre_hook(take)
    try:
        with torch.enable_grad(), HeldStill():
            score = question.score(model(images)).sum()  # images do not mix, so one sum will do
    finally:
        hook.remove()
    (slope,) = torch.autograd.grad(score, taken)
    return taken[0].detach(), slope


class HeldStill(TorchFunctionMode):
    """Inside, the network computes what it always does, and its backward pass takes attention, norms' scales and gates
    for constants. So the model's own forward pass is used, whatever its config, and none is written a second time."""

    def __torch_function__(
        self,
        function: Callable[..., Any],
        types: Any,
        arguments: tuple[Any, ...] = (),
        named: dict[str, Any] | None = None,
    ) -> Any:
        held = _HELD.get(function, function)
        return held(*arguments, **(named or {}))


def attention(q: Tensor, k: Tensor, v: Tensor, **named: Any) -> Tensor:
    return F.scaled_dot_product_attention(q.detach(), k.detach(), v, **named)


def layer_norm(
    x: Tensor, shape: Any, weight: Tensor | None = None, bias: Tensor | None = None, eps: float = 1e-5
) -> Tensor:
    centred = x - x.mean(-1, keepdim=True)
    scale = (centred.detach().square().mean(-1, keepdim=True) + eps).rsqrt()
    y = centred * scale
    y = y if weight is None else y * weight
    return y if bias is None else y + bias


def gelu(x: Tensor, approximate: str = "none") -> Tensor:
    return through_gate(x, F.gelu(x.detach(), approximate=approximate), 0.5)


def tanh(x: Tensor) -> Tensor:
    return through_gate(x, torch.tanh(x.detach()), 1.0)


def through_gate(x: Tensor, y: Tensor, at_zero: float) -> Tensor:
    """y = x gate, where gate = y / x is a constant."""
    x0 = x.detach()
    tiny = x0.abs() < 1e-6
    return x * torch.where(tiny, at_zero, y / torch.where(tiny, 1.0, x0))


_HELD: dict[Any, Callable[..., Any]] = {
    F.scaled_dot_product_attention: attention,
    F.layer_norm: layer_norm,
    F.gelu: gelu,
    F.silu: lambda x, *_, **__: F.silu(x.detach()),  # SwiGLU's gate
    torch.sigmoid: lambda x: torch.sigmoid(x.detach()),  # quick GELU's gate
    torch.tanh: tanh,
}
