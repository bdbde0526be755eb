"""OpenVINO on a CPU: float32, bfloat16 where the processor has instructions for it, and int8."""

from __future__ import annotations

import functools
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch

from vitrail.errors import VitrailError
from vitrail.graphs.no_telemetry import import_silently
from vitrail.inference.backends.graph_backend import Floats, GraphBackend, Run
from vitrail.model import precision as hardware

# A network that merges tokens is compiled for each batch size: with a free batch its many steps eat what they save.
# S/16, 8 tokens a block, batch 1 on one core, CPU time: 13.9 ms in int8 against 13.4 without merging; fixed, 10.8.
MOST_BATCHES = 2  # that are kept ready: each holds a copy of the weights
HINTS = {"float32": "f32", "bfloat16": "bf16"}  # OpenVINO's names; without one it takes bfloat16 where it can


class OpenVinoBackend(GraphBackend):
    """The traced network, compiled by OpenVINO's CPU plugin each time it is loaded, in a fraction of a second."""

    name = "openvino"
    graph_format = "openvino"

    @classmethod
    def choose_precision(cls, name: str) -> str:
        """`auto` is bfloat16 where both the hardware and OpenVINO compute in it; int8 has to be asked for."""
        has_bf16 = "BF16" in core().get_property("CPU", "OPTIMIZATION_CAPABILITIES")
        if name == "auto":
            return "bfloat16" if has_bf16 and hardware.computes_bf16("cpu") else "float32"
        if name == "bfloat16" and not has_bf16:
            raise VitrailError("this processor has no bf16, so OpenVINO cannot compute in it: choose fp32")
        return name

    @property
    def float_hint(self) -> str:
        """What it computes in; in int8, where a layer is not."""
        return HINTS[self.choose_precision("auto") if self.precision == "int8" else self.precision]

    def trace_model(self, size: tuple[int, int]) -> Any:
        from vitrail.graphs.openvino_graph import openvino_model
        from vitrail.graphs.trace import trace

        return openvino_model(trace(self.checkpoint, size, pooled=self.gives_pooled))

    def serialise(self, model: Any) -> list[bytes]:
        """The graph as text, and its weights as they are."""
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, "graph.xml")
            import_silently("openvino").save_model(model, path, compress_to_fp16=False)
            return [path.read_bytes(), path.with_suffix(".bin").read_bytes()]

    def compile(self, parts: list[memoryview]) -> Run:
        openvino = import_silently("openvino")
        text, weights = parts
        model = core().read_model(bytes(text), openvino.Tensor(np.frombuffer(weights, np.uint8), shared_memory=True))
        settings = {
            "INFERENCE_PRECISION_HINT": self.float_hint,
            "INFERENCE_NUM_THREADS": torch.get_num_threads(),
            "NUM_STREAMS": 1,
            "PERFORMANCE_HINT": "LATENCY",  # the engine gives it whole batches, one after the other
            "ENABLE_CPU_PINNING": False,  # threads that decode, and other processes, need the cores as well
        }
        fixed_batch = self.checkpoint.model.merge_tokens > 0
        requests: dict[int, Any] = {}  # by batch; 0: any

        def run(images: Floats, kept: memoryview = weights) -> list[Floats]:  # OpenVINO may read weights where they are
            batch = len(images) if fixed_batch else 0
            if batch not in requests:
                while len(requests) >= MOST_BATCHES:
                    del requests[next(iter(requests))]
                if fixed_batch:
                    model.reshape([batch, *images.shape[1:]])
                requests[batch] = core().compile_model(model, "CPU", settings).create_infer_request()
            outputs = requests[batch].infer({0: images}, share_inputs=True, share_outputs=False)
            return [outputs[place] for place in range(len(outputs))]

        if not fixed_batch:
            requests[0] = core().compile_model(model, "CPU", settings).create_infer_request()  # no answer waits for it
        return run


@functools.cache
def core() -> Any:
    """OpenVINO's one runtime of this process."""
    return import_silently("openvino").Core()
