"""Calibration: the expected calibration error (ECE), and the temperature that makes it small."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

BINS = 15
COLDEST, HOTTEST = 0.05, 20.0  # temperatures beyond these only say that the logits tell nothing
STEPS = 40  # Newton needs about six; halving, where Newton jumps too far, about sixteen
EXACT = 1e-4  # no one can tell a temperature of 1.5 from 1.50015


def reliability(confidence: np.ndarray, right: np.ndarray, bins: int = BINS) -> dict[str, Any]:
    """ECE and its table: equal-width bins (low, high] of confidence, with how often those answers were right."""
    of_bin = np.clip(np.ceil(confidence * bins).astype(int) - 1, 0, bins - 1)  # a confidence of 0 belongs to the first
    count = np.bincount(of_bin, minlength=bins)
    summed_confidence = np.bincount(of_bin, weights=confidence, minlength=bins)
    summed_right = np.bincount(of_bin, weights=right, minlength=bins)
    table = [
        {
            "low": i / bins,
            "high": (i + 1) / bins,
            "count": int(count[i]),
            "confidence": float(summed_confidence[i] / count[i]) if count[i] else None,
            "frequency": float(summed_right[i] / count[i]) if count[i] else None,
        }
        for i in range(bins)
    ]
    return {"ece": float(np.abs(summed_confidence - summed_right).sum() / len(confidence)), "bins": table}


def fit_temperature(logits: Tensor, targets: Tensor) -> float:
    """The T > 0 for which logits / T are least surprised by the targets: class indices (M,), or 0/1 of labels (M, K).

    The negative log-likelihood is convex in 1 / T, so its slope has one zero. Targets are softened by one in M + 2
    (Platt's rule): when all M answers are right, plain likelihood would ask for endless confidence.
    Newton's steps inside a bracket: scipy.optimize knows either the one or the other, and torch's tensors stay here.
    """
    z = logits.detach().cpu().double()
    y = targets.detach().cpu()
    wanted = softened_sum(z, y)
    inverse, low, high = 1.0, 1 / HOTTEST, 1 / COLDEST
    for _ in range(STEPS):
        slope, curvature = slope_and_curvature(z * inverse, z, of_classes=y.dim() == 1)
        slope -= wanted
        low, high = (low, inverse) if slope > 0 else (inverse, high)
        newton = inverse - slope / curvature if curvature > 0 else high
        nearer = newton if low < newton < high else math.sqrt(low * high)
        inverse, moved = nearer, abs(nearer / inverse - 1)
        if moved < EXACT:
            break
    return 1 / inverse if nll(z * inverse, y) < nll(z, y) else 1.0


def softened_sum(z: Tensor, y: Tensor) -> float:
    """Sum of the logits that the targets point at, with one in M + 2 of each target spread over all its outcomes."""
    softening = 1 / (len(z) + 2)
    if y.dim() == 1:
        true, spread = z.gather(1, y[:, None]).sum(), z.mean(1).sum()
    else:
        true, spread = (z * y).sum(), z.sum() / 2
    return float((1 - softening) * true + softening * spread)


def slope_and_curvature(scaled: Tensor, z: Tensor, of_classes: bool) -> tuple[float, float]:
    """Sums, over the images, of mean and variance of the logits z under the probabilities of the scaled ones: the
    derivatives of the log-partition by 1 / T."""
    p = torch.softmax(scaled, 1) if of_classes else torch.sigmoid(scaled)
    pz = p * z
    if of_classes:
        mean = pz.sum(1)
        return float(mean.sum()), float((pz * z).sum() - mean.square().sum())
    return float(pz.sum()), float((pz * z * (1 - p)).sum())


def nll(z: Tensor, y: Tensor) -> float:
    """Mean negative log-likelihood."""
    return float(F.cross_entropy(z, y) if y.dim() == 1 else F.binary_cross_entropy_with_logits(z, y.double()))
