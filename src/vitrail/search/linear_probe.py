"""The linear probe: one linear layer, fitted to frozen features by the task's own loss and a penalty on its weights.

With classes that is logistic regression, with labels one for each of them, with numbers ridge regression. The penalty
is chosen on images that the layer was not fitted to, and never on those that it is measured on.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from vitrail.tasks.task import Task

PENALTIES = (1e-4, 1e-3, 1e-2, 1e-1)  # times the sum of the squared weights
STEPS = 60  # of L-BFGS
HELD_OUT = 5  # of the images every fifth chooses among the penalties, where nobody says which


@dataclass(frozen=True)
class LinearProbe:
    """A linear layer on features."""

    weight: Tensor  # (K, D)
    bias: Tensor  # (K,)
    penalty: float

    def __call__(self, features: Tensor) -> Tensor:
        """(B, D) -> (B, K), as a model in training gives them: `Task.meant` makes answers of it."""
        return features @ self.weight.T + self.bias


def fit_probe(
    features: Tensor,
    targets: Tensor,
    task: Task,
    *,
    penalties: Sequence[float] = PENALTIES,
    held_out: Tensor | None = None,
    steps: int = STEPS,
) -> LinearProbe:
    """features (M, D), targets as `task.encode` gives them -> the best linear layer on them.

    held_out: bool (M,), the images that choose the penalty; None: every fifth. Then all are fitted with it.
    """
    mean, std = features.mean(0), features.std(0, correction=0).clamp(min=1e-6)
    standard = (features - mean) / std
    if held_out is None:
        held_out = torch.arange(len(features)) % HELD_OUT == 0
    penalty = penalties[0]
    if len(penalties) > 1 and held_out.any() and not held_out.all():
        losses = []
        for tried in penalties:
            probe = _minimise(standard[~held_out], targets[~held_out], task, tried, steps)
            losses.append(float(task.loss(probe(standard[held_out]), targets[held_out])))
        penalty = penalties[losses.index(min(losses))]
    best = _minimise(standard, targets, task, penalty, steps)
    weight = best.weight / std
    return LinearProbe(weight, best.bias - weight @ mean, penalty)


def _minimise(features: Tensor, targets: Tensor, task: Task, penalty: float, steps: int) -> LinearProbe:
    """The task's loss and the penalty, by L-BFGS on all features at once."""
    layer = nn.Linear(features.shape[1], task.outputs)
    nn.init.zeros_(layer.weight)
    nn.init.zeros_(layer.bias)
    optimizer = torch.optim.LBFGS(layer.parameters(), max_iter=steps, line_search_fn="strong_wolfe")

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = task.loss(layer(features), targets) + penalty * layer.weight.square().sum()
        loss.backward()
        return loss

    optimizer.step(closure)
    return LinearProbe(layer.weight.detach(), layer.bias.detach(), penalty)
