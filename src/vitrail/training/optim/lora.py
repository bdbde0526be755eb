"""LoRA: the weights of the blocks stay still, and each learns a low-rank change W + B A beside it.

A parametrisation, not a wrapper: the network reads `weight` as ever, and merging leaves a plain layer behind.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from vitrail.model.encoder import Encoder


class LowRank(nn.Module):
    def __init__(self, rows: int, columns: int, rank: int) -> None:
        super().__init__()
        self.down = nn.Parameter(torch.empty(rank, columns))
        self.up = nn.Parameter(torch.zeros(rows, rank))  # no change at first
        nn.init.kaiming_uniform_(self.down, a=math.sqrt(5))

    def forward(self, weight: Tensor) -> Tensor:
        return weight + self.up @ self.down


def add_low_rank(model: Encoder, rank: int) -> None:
    for layer in _layers(model):
        parametrize.register_parametrization(layer, "weight", LowRank(layer.out_features, layer.in_features, rank))


def merge_low_rank(model: Encoder) -> None:
    """The changes become part of the weights; the model is a plain one again."""
    for layer in _layers(model):
        if parametrize.is_parametrized(layer, "weight"):
            parametrize.remove_parametrizations(layer, "weight", leave_parametrized=True)


def is_low_rank(name: str) -> bool:
    return ".parametrizations.weight.0." in name


def _layers(model: Encoder) -> list[nn.Linear]:
    return [module for block in model.block_modules() for module in block.modules() if isinstance(module, nn.Linear)]
