"""A graph of OpenVINO, compiled on this CPU: NumPy in, NumPy out. Nothing here waits for torch."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import numpy as np

from vitrail.graphs.graph_file import Floats, Forward
from vitrail.graphs.no_telemetry import import_silently

# A network that merges tokens is compiled for each batch size: with a free batch its many steps eat what they save.
# S/16, 8 tokens a block, batch 1 on one core, CPU time: 13.9 ms in int8 against 13.4 without merging; fixed, 10.8.
MOST_BATCHES = 2  # that are kept ready: each holds a copy of the weights


def compile_openvino(parts: Sequence[memoryview], hint: str, threads: int, fixed_batch: bool) -> Forward:
    """The parts of a file, in memory that may be written, ready to run. hint: what it computes in, f32 or bf16.

    fixed_batch: it is compiled anew for every batch size that comes.
    """
    openvino = import_silently("openvino")
    text, weights = parts
    model = core().read_model(bytes(text), openvino.Tensor(np.frombuffer(weights, np.uint8), shared_memory=True))
    settings = {
        "INFERENCE_PRECISION_HINT": hint,
        "INFERENCE_NUM_THREADS": threads,
        "NUM_STREAMS": 1,
        "PERFORMANCE_HINT": "LATENCY",  # the engine gives it whole batches, one after the other
        "ENABLE_CPU_PINNING": False,  # threads that decode, and other processes, need the cores as well
    }
    requests: dict[int, Any] = {}  # by batch; 0: any

    def run(images: Floats, kept: memoryview = weights) -> Floats:  # OpenVINO may read weights where they are
        batch = len(images) if fixed_batch else 0
        if batch not in requests:
            while len(requests) >= MOST_BATCHES:
                del requests[next(iter(requests))]
            if fixed_batch:
                model.reshape([batch, *images.shape[1:]])
            requests[batch] = core().compile_model(model, "CPU", settings).create_infer_request()
        outputs: Floats = requests[batch].infer({0: images}, share_inputs=True, share_outputs=False)[0]
        return outputs

    if not fixed_batch:
        requests[0] = core().compile_model(model, "CPU", settings).create_infer_request()  # no answer waits for it
    return run


@functools.cache
def core() -> Any:
    """OpenVINO's one runtime of this process."""
    return import_silently("openvino").Core()
