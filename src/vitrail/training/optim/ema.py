"""EMA: an exponential moving average of the weights, steadier than the last step's where the learning rate stays high.

torch's AveragedModel does the same on a deep copy of the module, which FSDP2 refuses to make; here it is a dict of
tensors, sharded as the model's own are.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn


class EMA:
    """Averages over about `horizon` steps, over fewer at the start."""

    def __init__(self, model: nn.Module, horizon: float) -> None:
        self.horizon = horizon
        self.weights = {name: tensor.detach().clone() for name, tensor in model.state_dict().items()}

    @torch.no_grad()
    def update(self, model: nn.Module, step: int) -> None:
        share = min(1.0, max(1 / self.horizon, 1 / (step + 1)))
        for name, tensor in model.state_dict().items():
            averaged = self.weights[name]
            if averaged.is_floating_point():
                averaged.lerp_(tensor, share)
            else:
                averaged.copy_(tensor)

    @contextmanager
    def applied(self, model: nn.Module) -> Iterator[None]:
        """The model has the averaged weights inside, its own again afterwards."""
        own: dict[str, Tensor] = {name: tensor.detach().clone() for name, tensor in model.state_dict().items()}
        model.load_state_dict(self.weights)
        try:
            yield
        finally:
            model.load_state_dict(own)
