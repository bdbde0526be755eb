"""The end of the walk: final norm, pooling, head, and what the numbers mean."""

# ruff: noqa: RUF001  formulas and sizes are written as people write them

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from torch import Tensor

from vitrail.explanation.walk.walk_steps import Figure, Step, first, matrix, shape_of
from vitrail.model.encoder import Encoder
from vitrail.tasks.registry import task_class

BARS = 10  # classes that are shown, the largest


def answer_steps(model: Encoder, x: Tensor, labels: Sequence[str] | None, task: str) -> tuple[list[Step], Tensor]:
    """From the last block's output (1, M, D): the steps, and the model's outputs (1, K).

    A dense head is not walked through: the walk of such a model ends in the pooled vector."""
    steps: list[Step] = []
    normed = model.norm_tokens(x)
    if normed is not x:
        text = "Once more over each token's own D numbers, after the last block."
        figures = [matrix("before", x[0]), matrix("after", normed[0])]
        steps.append(Step("The final norm", "y = LN(x)", shape_of(normed), text, figures))
    outputs, heads = model.answer(x), len(model.output_layers())
    if heads == 2:
        token = normed[:, 0]
        text = "DeiT: each has a head of its own."
        steps.append(Step("Two tokens are read", "[CLS] and [DIST]", shape_of(token, token), text))
    else:
        steps.append(_pooled(model, normed, model.pool_tokens(normed)))
    if heads:
        steps += head_steps(model, outputs, labels, task)
    return steps, outputs


def head_steps(model: Encoder, outputs: Tensor, labels: Sequence[str] | None, task: str) -> list[Step]:
    values = outputs[0].float()
    names = [labels[i] if labels is not None else f"output {i}" for i in range(len(values))]
    formula = "y W + b" if model.config.head == "linear" else "tanh(y W₁ + b₁) W₂ + b₂"
    sizes = f"({model.config.pooled_width},) → ({len(values)},)"
    link = task_class(task).link
    if link == "identity":
        return [
            Step("The head", f"ŷ = {formula}", sizes, "The numbers asked for.", [bars("the answer", values, names)])
        ]
    logits = bars("the largest logits", values, names)
    head = Step("The head", f"logits = {formula}", sizes, "One number for each answer.", [logits])
    if link == "sigmoid":
        shares, title, formula = values.sigmoid(), "Sigmoid", "pₖ = 1 / (1 + exp(−logitₖ))"
        text = "Each logit becomes a probability of its own: an image may have several labels, or none."
    else:
        shares, title, formula = values.softmax(0), "Softmax", "pₖ = exp(logitₖ) / Σⱼ exp(logitⱼ)"
        text = "Logits become probabilities: all above 0, together 1."
    return [head, Step(title, formula, f"({len(values)},)", text, [bars("the largest probabilities", shares, names)])]


def bars(caption: str, values: Tensor, names: Sequence[str]) -> Figure:
    order = values.argsort(descending=True, stable=True)[:BARS]
    chosen = np.asarray(values[order].cpu(), np.float32)
    return Figure(caption, chosen, "bars", tuple(names[int(i)] for i in order))


def _pooled(model: Encoder, x: Tensor, pooled: Tensor) -> Step:
    kind = model.config.pool
    words = {
        "cls": ("Slot 0 is read", "y = x[0]", "[CLS] alone goes on; what the others found out, it has gathered."),
        "mean": ("The mean of the patches", "y = 1/N Σᵢ xᵢ", "Every patch counts alike."),
        "cls_mean": ("[CLS] and the mean", "y = [x_cls, 1/N Σᵢ xᵢ]", "Both, side by side."),
        "attention": ("Attention pooling", "y = MLP(softmax(q Kᵀ / √d) V)", "One learned query looks at every token."),
        "none": ("Every patch is kept", "y = x", "One answer a patch."),
    }
    title, formula, text = words[kind]
    shown = pooled[0] if pooled.dim() == 3 else strip(pooled[0])
    what = "the vector, cut into lines" if pooled.dim() == 2 else "the tokens"
    return Step(
        title, formula, f"{shape_of(x)} → {shape_of(pooled)}", text, [matrix(what, shown)], ("it begins", first(pooled))
    )


def strip(vector: Tensor) -> Tensor:
    """A long vector in lines, so that it can be seen: (D,) -> (rows, columns)."""
    rows = max(rows for rows in range(1, int(len(vector) ** 0.5) + 1) if len(vector) % rows == 0)
    return vector.reshape(rows, -1) if rows > 1 else vector[None]
