"""The process of one engine: JSON lines in, JSON lines out. `bench_process.py` is its other end.

It loads the engine, says so, and then does what it is asked, one thing at a time. So its memory is that engine's, and
another engine's threads cannot disturb its own: while one runs, the others wait for their next line.
"""

from __future__ import annotations

import json
import os
import sys
import time
from typing import Any, TextIO

LEAST_RUNS, MOST_RUNS = 3, 1000  # in one turn
OUTPUTS_BATCH = 8
WARM_RUNS = 2


def main() -> None:
    """`python -m vitrail.inference.bench.bench_worker`."""
    replies = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # whatever a runtime prints is no reply
    requests = map(json.loads, sys.stdin)
    try:
        worker = Worker(**next(requests))
    except Exception as error:  # the parent puts it into one line
        _reply(replies, {"error": str(error).strip() or type(error).__name__})
        return
    _reply(replies, {"ready": True})
    for request in requests:
        _reply(replies, getattr(worker, request.pop("do"))(**request))


class Worker:
    """An engine with the pictures that it is measured on."""

    def __init__(self, model: str, pictures: str, engine: str, precision: str, **options: Any) -> None:
        import numpy as np

        from vitrail.inference.engine import Engine

        self.engine = Engine.open(
            model, untrained=True, engine=engine, device="cpu", precision=precision, batch_size=1, **options
        )
        self.pictures = np.load(pictures)  # (n, C, h, w), normalised

    def _batch(self, size: int) -> Any:
        import numpy as np
        import torch

        return torch.from_numpy(self.pictures[np.arange(size) % len(self.pictures)])

    def warm_up(self, batch: int) -> dict[str, Any]:
        """Run a batch size for the first time. `peak_bytes`: the most memory held meanwhile; `seconds` of one run."""
        from vitrail.inference.peak_memory import peak_bytes, reset_peak

        images = self._batch(batch)
        self.engine.forward(images)  # compiles, allocates, picks kernels
        reset_peak()
        for _ in range(WARM_RUNS):
            before = time.perf_counter()
            self.engine.forward(images)
            seconds = time.perf_counter() - before
        return {"peak_bytes": peak_bytes(), "seconds": seconds}

    def run(self, batch: int, seconds: float) -> dict[str, Any]:
        """`seconds` of each of some runs, which together take about so long."""
        images, times = self._batch(batch), list[float]()
        while len(times) < LEAST_RUNS or (sum(times) < seconds and len(times) < MOST_RUNS):
            before = time.perf_counter()
            self.engine.forward(images)
            times.append(time.perf_counter() - before)
        return {"seconds": times}

    def outputs(self, path: str) -> dict[str, Any]:
        """Write the outputs of all pictures, (n, ...), as .npy."""
        import numpy as np
        import torch

        parts = [
            self.engine.forward(torch.from_numpy(self.pictures[start : start + OUTPUTS_BATCH])).numpy()
            for start in range(0, len(self.pictures), OUTPUTS_BATCH)
        ]
        np.save(path, np.concatenate(parts))
        return {"written": path}


def _reply(replies: TextIO, value: dict[str, Any]) -> None:
    replies.write(json.dumps(value) + "\n")
    replies.flush()


if __name__ == "__main__":
    main()
