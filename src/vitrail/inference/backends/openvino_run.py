"""A graph of OpenVINO, compiled on this CPU: NumPy in, NumPy out. Nothing here waits for torch."""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np

from vitrail.graphs.graph_file import Floats, GraphRun
from vitrail.graphs.no_telemetry import import_silently

# A graph that is compiled for one batch size is faster than one for any: its small steps are fused. CPU time of a core
# (AMD Zen 5), batch 1: S/16 in float32 and bfloat16 1.05 and 1.04 times, DeiT-Ti in int8 1.14 times; batch 8: S/16 in
# bfloat16 1.00, DeiT-Ti in int8 1.04.
MOST_FIXED = 2  # batch sizes that have a graph of their own: the first that come, then those that come most often;
# each holds a copy of the weights
OFTEN = 10  # how much more often a size has come than one that has a graph, to get it instead: compiling takes a while
ANY = 0  # in the place of a batch size: the graph that the others run in


def compile_openvino(parts: Sequence[memoryview], hint: str, threads: int) -> GraphRun:
    """The parts of a file, in memory that may be written, ready to run. hint: what it computes in, f32 or bf16.

    It is compiled when the first batch comes, for its size.
    """
    openvino = import_silently("openvino")
    text, weights = parts
    read = openvino.Tensor(np.frombuffer(weights, np.uint8), shared_memory=True)
    model = core().read_model(bytes(text), read)
    settings = {
        "INFERENCE_PRECISION_HINT": hint,
        "INFERENCE_NUM_THREADS": threads,
        "NUM_STREAMS": 1,
        "PERFORMANCE_HINT": "LATENCY",  # the engine gives it whole batches, one after the other
        "ENABLE_CPU_PINNING": False,  # threads that decode, and other processes, need the cores as well
    }
    requests: dict[int, Any] = {}  # by batch size
    came: Counter[int] = Counter()  # how often each size did

    def place_of(batch: int) -> int:
        """The size whose graph this batch runs in."""
        fixed = requests.keys() - {ANY}
        if batch in fixed or len(fixed) < MOST_FIXED:
            return batch
        rarest = min(fixed, key=lambda size: came[size])
        if came[batch] <= came[rarest] + OFTEN:
            return ANY
        del requests[rarest]
        return batch

    def request_for(images: Floats) -> Any:
        came[len(images)] += 1
        batch = place_of(len(images))
        if batch not in requests:
            model.reshape([-1 if batch == ANY else batch, *images.shape[1:]])
            requests[batch] = core().compile_model(model, "CPU", settings).create_infer_request()
        return requests[batch]

    def run(images: Floats, kept: memoryview = weights) -> list[Floats]:  # OpenVINO may read weights where they are
        results = request_for(images).infer({0: images}, share_inputs=True, share_outputs=False)
        return [results[place] for place in range(len(model.outputs))]

    return run


@functools.cache
def core() -> Any:
    """OpenVINO's one runtime of this process."""
    return import_silently("openvino").Core()
