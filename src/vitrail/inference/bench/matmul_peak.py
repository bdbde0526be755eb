"""How fast this machine multiplies matrices at best: what an engine's speed is a share of."""

from __future__ import annotations

import statistics
import time

import torch

from vitrail.model.precision import computes_bf16

SIDE = 1024  # large enough to be fast, small enough for a tenth of a second
TURN = 0.1  # seconds


class MatmulPeak:
    """Measured a little in every round, in each type that torch multiplies in; the faster type is the peak."""

    def __init__(self) -> None:
        types = [torch.float32, *([torch.bfloat16] if computes_bf16("cpu") else [])]
        self._factors = {kind: torch.full((SIDE, SIDE), 0.5, dtype=kind) for kind in types}
        self._rates: dict[torch.dtype, list[float]] = {kind: [] for kind in types}

    def measure(self) -> None:
        """Another round."""
        for kind, factor in self._factors.items():
            torch.mm(factor, factor)
            times: list[float] = []
            while sum(times) < TURN:
                before = time.perf_counter()
                torch.mm(factor, factor)
                times.append(time.perf_counter() - before)
            self._rates[kind].append(2 * SIDE**3 / min(times))

    @property
    def operations(self) -> tuple[float, str]:
        """Additions and multiplications a second, and the type that they are in."""
        rates = {kind: statistics.median(values) for kind, values in self._rates.items() if values}
        best = max(rates, key=lambda kind: rates[kind])
        return rates[best], str(best).removeprefix("torch.")
