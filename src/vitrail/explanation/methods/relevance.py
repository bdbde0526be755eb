"""Relevance for one answer: what each patch adds to it, while every decision of the network is held constant.

A transformer is linear but for its decisions: where attention looks, how a norm scales a token, how far a GELU opens.
Held at the values they have for this image, they leave a linear map from tokens to the answer, and a linear map is a
sum over tokens: each patch's part is (token - token of a blank patch) * gradient. The parts are signed, have the unit
of the answer, need one forward and one backward pass, and attention stays fused: memory is O(N).

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

from vitrail.explanation.forward_pass import evaluation_mode
from vitrail.explanation.target_score import TargetScore, blank
from vitrail.model.encoder import BlockStep, Capture, Encoder


def relevance(model: Encoder, images: Tensor, target: TargetScore) -> Tensor:
    """(B, h, w): each patch's part in the score, positive where it speaks for the answer, negative where against it."""
    return relevance_of_stages(model, images, target)[0]


def relevance_of_stages(model: Encoder, images: Tensor, target: TargetScore) -> list[Tensor]:
    """The relevance of the tokens that each stage begins with, (B, h, w) on its own grid, the finest first. A plain ViT
    is one stage. Merging is a linear map of 2 x 2 tokens, so relevance goes through it as through any other."""
    with evaluation_mode(model):
        found = linearised_gradients(model, images, target)
        with torch.no_grad():
            embedding = model.embed(blank(images))
            steps = model.steps(embedding)  # of a blank picture, no further than the last stage's begin
            blanks = [next(step for step in steps if step.index == own.index).input for own, _ in found]
    maps = []
    for (step, gradient), empty in zip(found, blanks, strict=True):
        parts = ((step.input.detach() - empty) * gradient).float().sum(-1)  # (B, M); 0 for prefix tokens: no picture
        maps.append(parts[:, model.prefix :].unflatten(1, step.grid))  # changes them
    return maps


def linearised_gradients(model: Encoder, images: Tensor, target: TargetScore) -> list[tuple[BlockStep, Tensor]]:
    """For each stage the step of its first block, and the gradient of the score at that block's input, (B, M, D), with
    all decisions held constant."""
    firsts = [0, *(level.block + 1 for level in model.config.levels[:-1])]
    capture = Capture(blocks=firsts)
    with torch.no_grad():
        embedding = model.embed(images)
    embedding = embedding._replace(tokens=embedding.tokens.detach().requires_grad_())
    with torch.enable_grad(), DetachedDecisions():
        score = target.score(model.forward_embedding(embedding, capture=capture)).sum()  # images do not mix
    steps = [capture.steps[first] for first in firsts]
    return list(zip(steps, torch.autograd.grad(score, [step.input for step in steps]), strict=True))


class DetachedDecisions(TorchFunctionMode):
    """Inside, the network computes what it always does, but the backward pass takes attention weights, norms' scales
    and gates for constants. So the model's own forward pass is used, whatever its config, and none is written twice."""

    def __torch_function__(
        self,
        function: Callable[..., Any],
        types: Any,
        arguments: tuple[Any, ...] = (),
        named: dict[str, Any] | None = None,
    ) -> Any:
        detached = _DETACHED.get(function, function)
        return detached(*arguments, **(named or {}))


def attention(q: Tensor, k: Tensor, v: Tensor, *bias: Any, **named: Any) -> Tensor:
    return F.scaled_dot_product_attention(q.detach(), k.detach(), v, *bias, **named)


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


_DETACHED: dict[Any, Callable[..., Any]] = {
    F.scaled_dot_product_attention: attention,
    F.layer_norm: layer_norm,
    F.gelu: gelu,
    F.silu: lambda x, *_, **__: F.silu(x.detach()),  # SwiGLU's gate
    torch.sigmoid: lambda x: torch.sigmoid(x.detach()),  # quick GELU's gate
    torch.tanh: tanh,
}
