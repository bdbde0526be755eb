"""ONNX Runtime on a CPU, in float32 and int8."""

from __future__ import annotations

from typing import Any

import torch

from vitrail.errors import VitrailError
from vitrail.graphs.installed import import_installed
from vitrail.graphs.trace import IMAGES
from vitrail.inference.backends.graph_backend import Floats, GraphBackend, Run


class OnnxRuntimeBackend(GraphBackend):
    """The traced network as ONNX, optimised by ONNX Runtime each time it is loaded."""

    name = "onnxruntime"
    graph_format = "onnx"

    @classmethod
    def choose_precision(cls, name: str) -> str:
        """Its CPU kernels have no bfloat16; int8 has to be asked for."""
        onnxruntime()  # where it is missing, that is the sentence to read
        if name == "bfloat16":
            raise VitrailError("the engine onnxruntime does not compute in bf16 on a CPU: choose auto, fp32 or int8")
        return "float32" if name == "auto" else name

    def trace_model(self, size: tuple[int, int]) -> Any:
        from vitrail.graphs.onnx_graph import onnx_model
        from vitrail.graphs.trace import trace

        return onnx_model(trace(self.checkpoint, size, pooled=self.gives_pooled))

    def serialise(self, model: Any) -> list[bytes]:
        return [model.SerializeToString()]

    def compile(self, parts: list[memoryview]) -> Run:
        runtime = onnxruntime()
        options = runtime.SessionOptions()
        options.intra_op_num_threads, options.inter_op_num_threads = torch.get_num_threads(), 1
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")  # threads that decode need the cores
        options.log_severity_level = 3  # errors
        session = runtime.InferenceSession(bytes(parts[0]), options, providers=["CPUExecutionProvider"])

        def run(images: Floats) -> list[Floats]:
            return session.run(None, {IMAGES: images})

        return run


def onnxruntime() -> Any:
    """The package, which on Windows would report to its makers; VitrailError where it is not installed."""
    runtime = import_installed("onnxruntime")
    runtime.disable_telemetry_events()
    return runtime
