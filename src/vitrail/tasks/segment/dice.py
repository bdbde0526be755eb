"""The dice loss: how little a class's answered area and its true one overlap, small classes counting as large ones."""

from __future__ import annotations

import torch
from torch import Tensor


def dice_loss(probabilities: Tensor, targets: Tensor, known: Tensor) -> Tensor:
    """1 - 2 |answer and truth| / (|answer| + |truth|), each class over the whole batch, mean over those that occur.

    probabilities (B, K, H, W), targets (B, H, W) with any class number where not `known` (B, H, W). Over the batch and
    not over each picture: a class of ten pixels in one picture would count as much as one that fills all the others.
    """
    classes = probabilities.shape[1]
    true_probability = (
        probabilities.gather(1, targets[:, None])[:, 0] * known
    )  # (B, H, W): what the true class was given
    flat = targets.flatten()
    both = true_probability.new_zeros(classes).index_add(0, flat, true_probability.flatten())
    truth = true_probability.new_zeros(classes).index_add(0, flat, known.flatten().to(true_probability.dtype))
    answer = torch.einsum("bkhw,bhw->k", probabilities, known.to(true_probability.dtype))
    occurs = truth > 0
    overlap = 2 * both / (answer + truth).clamp(min=1e-6)
    return ((1 - overlap) * occurs).sum() / occurs.sum().clamp(min=1)
