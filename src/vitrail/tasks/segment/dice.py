"""The dice loss: how little a class's answered area and its true one overlap, small classes counting as large ones."""

from __future__ import annotations

import torch
from torch import Tensor


def dice_loss(probabilities: Tensor, targets: Tensor, known: Tensor, pixels: Tensor | None = None) -> Tensor:
    """1 - 2 |answer and truth| / (|answer| + |truth|) of each class in each picture, mean over the classes that occur.

    probabilities (B, K, H, W), targets (B, H, W) with any class number where not `known` (B, H, W). pixels (K,): how
    many each class has in the whole step, of which this may be a part; None: these are all.

    A picture counts for a class by the share of the class's pixels that it has: ten pixels in one picture do not count
    as much as a class that fills another. Over all pictures at once the ratio could only be known after all of them
    have been run, and would be another one for each part of a step. What a picture is wrongly given of a class that it
    does not have is missing from the classes that it has, so it counts there.
    """
    batch, classes = probabilities.shape[:2]
    true_probability = probabilities.gather(1, targets[:, None])[:, 0] * known  # (B, H, W): of the true class
    image = torch.arange(batch, device=targets.device)[:, None, None]
    cells = (image * classes + targets).flatten()
    zeros = true_probability.new_zeros(batch * classes)
    both = zeros.index_add(0, cells, true_probability.flatten()).view(batch, classes)
    truth = zeros.index_add(0, cells, known.flatten().to(zeros.dtype)).view(batch, classes)
    answer = torch.einsum("bkhw,bhw->bk", probabilities, known.to(zeros.dtype))
    pixels = truth.sum(0) if pixels is None else pixels
    overlap = 2 * both / (answer + truth).clamp(min=1e-6)  # (B, K)
    each = ((1 - overlap) * truth).sum(0) / pixels.clamp(min=1)  # (K,)
    return each.sum() / (pixels > 0).sum().clamp(min=1)
