"""What the peers trained from scratch share: steps until the time is over, warm-up, then cosine to 0 at its end."""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable, Iterator

import torch
from torch import Tensor, nn

from peers.process import since_start

WARMUP = 0.05  # part of the time
LOG_EVERY = 30  # seconds


def train_for(
    minutes: float,
    optimizer: torch.optim.Optimizer,
    batch_loss: Callable[[], Tensor],
    clip: float | None = None,
    shape: str = "cosine",
    after_backward: Callable[[], None] | None = None,
) -> tuple[int, float]:
    """Steps until so many minutes after the process was started -> steps, seconds.

    batch_loss: draws the next batch and gives its loss. clip: the largest norm of the gradient. shape: how the learning
    rate falls after its warm-up, cosine or linear. after_backward: may change gradients.
    """
    begin, budget = since_start(), 60 * minutes
    peaks = [group["lr"] for group in optimizer.param_groups]
    start, steps, logged = time.perf_counter(), 0, 0.0
    while True:
        seconds = time.perf_counter() - start
        if steps and begin + seconds + 0.5 * seconds / steps > budget:  # the nearest whole step to the end
            return steps, seconds
        for group, peak in zip(optimizer.param_groups, peaks, strict=True):
            group["lr"] = peak * lr_factor(seconds / max(1e-9, budget - begin), shape)
        loss = batch_loss()
        optimizer.zero_grad()
        loss.backward()
        if after_backward is not None:
            after_backward()
        if clip is not None:
            nn.utils.clip_grad_norm_([p for group in optimizer.param_groups for p in group["params"]], clip)
        optimizer.step()
        steps += 1
        if seconds - logged > LOG_EVERY:
            logged = seconds
            print(f"{begin + seconds:.0f} s, step {steps}, loss {loss.item():.3f}", flush=True)


def lr_factor(progress: float, shape: str = "cosine") -> float:
    """The part of the peak learning rate at this part of the time."""
    if progress < WARMUP:
        return (progress + 1e-3) / (WARMUP + 1e-3)
    left = min(1.0, (progress - WARMUP) / (1 - WARMUP))
    return 1 - left if shape == "linear" else 0.5 * (1 + math.cos(math.pi * left))


def decay_groups(model: nn.Module, decay: float) -> list[dict[str, object]]:
    """Parameter groups of an optimizer: matrices and kernels decay, norms and biases are not pulled towards zero."""
    matrices = [p for p in model.parameters() if p.ndim > 1]
    others = [p for p in model.parameters() if p.ndim <= 1]
    return [{"params": matrices, "weight_decay": decay}, {"params": others, "weight_decay": 0.0}]


def shuffled_batches(count: int, size: int) -> Iterator[list[int]]:
    """Indices, epoch after epoch, each in a new order; a batch may reach into the next epoch."""
    order: list[int] = []
    while True:
        while len(order) < size:
            order += random.sample(range(count), count)
        yield order[:size]
        order = order[size:]


def speed(steps: int, seconds: float, batch: int, count: int) -> dict[str, float]:
    """What a peer reports of its training on `count` examples."""
    seen = steps * batch
    return {"steps": steps, "epochs": seen / count, "images_per_second": seen / seconds}
