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

        return openvino_model(trace(self.checkpoint, size))

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
        compiled = core().compile_model(model, "CPU", settings)
        request = compiled.create_infer_request()

        def run(images: Floats, kept: memoryview = weights) -> Floats:  # OpenVINO may read weights where they are
            outputs = request.infer({0: images}, share_inputs=True, share_outputs=False)
            return outputs[0]

        return run


@functools.cache
def core() -> Any:
    """OpenVINO's one runtime of this process."""
    return import_silently("openvino").Core()
