"""Relevance for one answer: what each patch adds to it, while every decision of the network is held constant.

A ViT is linear but for its decisions: where attention looks, how a norm scales a token, how far a GELU opens. Held at
the values they have for this image, they leave a linear map from tokens to the answer, and a linear map is a sum over
tokens: each patch's part is (token - token of a blank patch) * gradient. The parts are signed, have the unit of the
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

from vitrail.explanation.forward_pass import evaluation_mode
from vitrail.explanation.target_score import TargetScore, blank
from vitrail.model.encoder import Encoder


def relevance(model: Encoder, images: Tensor, target: TargetScore) -> Tensor:
    """(B, h, w): each patch's part in the score, positive where it speaks for the answer, negative where against it."""
    with evaluation_mode(model):
        tokens, gradient = linearised_gradient(model, images, target)
        with torch.no_grad():
            blank_tokens, _, grid = model.embed(blank(images))
    parts = ((tokens - blank_tokens) * gradient).float().sum(-1)  # (B, M); 0 for prefix tokens: no picture changes them
    return parts[:, model.prefix :].unflatten(1, grid)


def linearised_gradient(model: Encoder, images: Tensor, target: TargetScore) -> tuple[Tensor, Tensor]:
    """What the first block takes, (B, M, D), and the gradient of the score there with all decisions held constant."""
    with torch.no_grad():
        embedding = model.embed(images)
    tokens = embedding.tokens.detach().requires_grad_()
    with torch.enable_grad(), DetachedDecisions():
        outputs = model.forward_embedding(embedding._replace(tokens=tokens))
        score = target.score(outputs).sum()  # images do not mix, so one sum will do
    (gradient,) = torch.autograd.grad(score, tokens)
    return tokens.detach(), gradient


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
