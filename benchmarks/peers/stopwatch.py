"""The same arguments and the same clock for every peer of `throughput`: warm-up steps, then timed steps."""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import torch

from peers.process import keep_large_blocks, report, since_start


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", type=Path, required=True)
    for name in ("image", "patch", "width", "depth", "heads", "batch", "warm", "steps"):
        parser.add_argument(f"--{name}", type=int, required=True)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--precision", choices=("float32", "bfloat16"), default="float32")
    parser.add_argument("--keep-blocks", action="store_true")
    given = parser.parse_args()
    if given.keep_blocks:
        keep_large_blocks()
    torch.manual_seed(0)
    return given


class Stopwatch:
    def __init__(self, batch: int, warm: int, steps: int) -> None:
        self.batch, self.warm, self.steps = batch, warm, steps
        self.ends: list[float] = []
        self.first_step = 0.0

    def step_ended(self) -> bool:
        """Note it, and say whether all steps are done."""
        self.ends.append(time.perf_counter())
        if len(self.ends) == 1:
            self.first_step = since_start()
        return len(self.ends) >= self.warm + self.steps

    def report(self) -> None:
        seconds = self.ends[self.warm + self.steps - 1] - self.ends[self.warm - 1]
        report(images_per_second=self.steps * self.batch / seconds, seconds=seconds, first_step=self.first_step)
