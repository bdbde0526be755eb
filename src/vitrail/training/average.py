"""A running average of the weights (EMA): steadier than the last step's, where the learning rate stays high."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn


class Average:
    """Looks back over about `horizon` steps, over fewer at the start."""

    def __init__(self, model: nn.Module, horizon: float) -> None:
        self.horizon = horizon
        self.weights = {name: tensor.detach().clone() for name, tensor in model.state_dict().items()}

    @torch.no_grad()
    def update(self, model: nn.Module, step: int) -> None:
        share = min(1.0, max(1 / self.horizon, 1 / (step + 1)))
        for name, tensor in model.state_dict().items():
            kept = self.weights[name]
            if kept.is_floating_point():
                kept.lerp_(tensor, share)
            else:
                kept.copy_(tensor)

    @contextmanager
    def applied(self, model: nn.Module) -> Iterator[None]:
        """The model has the averaged weights inside, its own again afterwards."""
        own: dict[str, Tensor] = {name: tensor.detach().clone() for name, tensor in model.state_dict().items()}
        model.load_state_dict(self.weights)
        try:
            yield
        finally:
            model.load_state_dict(own)
