"""ONNX Runtime on a CPU, in float32."""

from __future__ import annotations

from typing import Any

import torch

from vitrail.errors import VitrailError
from vitrail.graphs.trace import IMAGES, OUTPUTS
from vitrail.inference.backends.graph_backend import Floats, GraphBackend, Run


class OnnxRuntimeBackend(GraphBackend):
    """The traced network as ONNX, optimised by ONNX Runtime each time it is loaded."""

    name = "onnxruntime"
    graph_kind = "onnx"

    @classmethod
    def choose_precision(cls, name: str) -> str:
        """Float32 alone: its CPU kernels have no bfloat16."""
        onnxruntime()  # where it is missing, that is the sentence to read
        if name not in ("auto", "float32"):
            raise VitrailError(f"the engine onnxruntime does not compute in {name} on a CPU: choose auto or fp32")
        return "float32"

    def make_graph(self, size: tuple[int, int]) -> list[bytes]:
        from vitrail.graphs.onnx_graph import onnx_model
        from vitrail.graphs.trace import trace

        return [onnx_model(trace(self.checkpoint, size)).SerializeToString()]

    def compile(self, parts: list[memoryview]) -> Run:
        runtime = onnxruntime()
        options = runtime.SessionOptions()
        options.intra_op_num_threads, options.inter_op_num_threads = torch.get_num_threads(), 1
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")  # threads that decode need the cores
        options.log_severity_level = 3  # errors
        session = runtime.InferenceSession(bytes(parts[0]), options, providers=["CPUExecutionProvider"])

        def run(images: Floats) -> Floats:
            return session.run([OUTPUTS], {IMAGES: images})[0]

        return run


def onnxruntime() -> Any:
    """The package, which on Windows would report to its makers; VitrailError where it is not installed."""
    try:
        import onnxruntime as runtime
    except ImportError as error:
        raise VitrailError(f"this needs onnxruntime: pip install 'vitrail[fast]' ({error})") from None
    runtime.disable_telemetry_events()
    return runtime
