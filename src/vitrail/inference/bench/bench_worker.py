"""The process of one engine: JSON lines in, JSON lines out. `bench_process.py` is its other end.

It loads the engine, says so, and then does what it is asked, one thing at a time. So its memory is that engine's, and
another engine's threads cannot disturb its own: while one runs, the others wait for their next line.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TextIO, TypeAlias

if TYPE_CHECKING:
    from torch import Tensor

Forward: TypeAlias = "Callable[[Tensor], Tensor]"  # normalised (B, C, h, w) -> outputs (B, ...)

LEAST_RUNS, MOST_RUNS = 3, 1000  # in one turn
WARM_RUNS = 2


def main() -> None:
    """`python -m vitrail.inference.bench.bench_worker`."""
    answer_requests(lambda **settings: Worker(engine_forward(**settings), settings["pictures"]))


def answer_requests(load: Callable[..., Worker]) -> None:
    """The loop of a worker's process: its settings come first, then what it shall do. Also for other people's engines
    (`benchmarks/peers`)."""
    replies = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # whatever a runtime prints is no reply
    requests = map(json.loads, sys.stdin)
    try:
        worker = load(**next(requests))
    except Exception as error:  # the parent puts it into one line
        _reply(replies, {"error": str(error).strip() or type(error).__name__})
        return
    _reply(replies, {"ready": True})
    for request in requests:
        _reply(replies, getattr(worker, request.pop("do"))(**request))


def engine_forward(model: str, engine: str, precision: str, pictures: str, **options: Any) -> Forward:
    """The forward pass of one of our engines."""
    from vitrail.inference.engine import Engine

    return Engine.open(
        model, untrained=True, engine=engine, device="cpu", precision=precision, batch_size=1, **options
    ).forward


class Worker:
    """A forward pass with the pictures that it is measured on: a file with (n, C, h, w), normalised."""

    def __init__(self, forward: Forward, pictures: str) -> None:
        import numpy as np

        self.forward = forward
        self.pictures = np.load(pictures, mmap_mode="r")

    def _batch(self, size: int) -> Any:
        import numpy as np
        import torch

        return torch.from_numpy(self.pictures[np.arange(size) % len(self.pictures)])

    def warm_up(self, batch: int) -> dict[str, Any]:
        """Run a batch size for the first time. `peak_bytes`: the most memory held meanwhile; `seconds` of one run."""
        from vitrail.inference.peak_memory import peak_bytes, reset_peak

        images = self._batch(batch)
        self.forward(images)  # compiles, allocates, picks kernels
        reset_peak()
        for _ in range(WARM_RUNS):
            before = time.perf_counter()
            self.forward(images)
            seconds = time.perf_counter() - before
        return {"peak_bytes": peak_bytes(), "seconds": seconds}

    def run(self, batch: int, seconds: float) -> dict[str, Any]:
        """`seconds` of each of some runs, which together take about so long."""
        images, times = self._batch(batch), list[float]()
        while len(times) < LEAST_RUNS or (sum(times) < seconds and len(times) < MOST_RUNS):
            before = time.perf_counter()
            self.forward(images)
            times.append(time.perf_counter() - before)
        return {"seconds": times}

    def outputs(self, path: str, batch: int) -> dict[str, Any]:
        """Write the outputs of all pictures, (n, ...), as .npy. They run in batches of a size that is measured, the
        last one filled up: an engine may keep graphs for the first sizes that come, and none for later ones."""
        import numpy as np
        import torch

        count = len(self.pictures)
        parts = [
            self.forward(torch.from_numpy(self.pictures[np.arange(start, start + batch) % count])).numpy()
            for start in range(0, count, batch)
        ]
        np.save(path, np.concatenate(parts)[:count])
        return {"written": path}


def _reply(replies: TextIO, value: dict[str, Any]) -> None:
    replies.write(json.dumps(value) + "\n")
    replies.flush()


if __name__ == "__main__":
    main()
