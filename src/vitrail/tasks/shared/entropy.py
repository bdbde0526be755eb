"""How unsure probabilities are: 0 where one answer is certain, 1 where all are as likely."""

from __future__ import annotations

import math

import torch
from torch import Tensor


def entropy(probabilities: Tensor, dim: int) -> Tensor:
    """Of probabilities that sum to 1 along `dim`, which is reduced; a single class is certain."""
    classes = probabilities.shape[dim]
    return torch.special.entr(probabilities).sum(dim) / (math.log(classes) if classes > 1 else 1.0)


def binary_entropy(probability: Tensor) -> Tensor:
    """Of each probability by itself; the shape stays."""
    return (torch.special.entr(probability) + torch.special.entr(1 - probability)) / math.log(2)
