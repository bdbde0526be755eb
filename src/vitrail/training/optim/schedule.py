"""How the learning rate goes: up over the warm-up, then down along a half cosine to nothing at the last step."""

from __future__ import annotations

import math


def learning_rate(step: int, steps: int, warmup: int, peak: float) -> float:
    """Of step 0 to steps - 1. The first step already learns, the last one still does."""
    if step < warmup:
        return peak * (step + 1) / (warmup + 1)
    progress = (step - warmup) / max(steps - warmup, 1)
    return peak * 0.5 * (1 + math.cos(math.pi * progress))
