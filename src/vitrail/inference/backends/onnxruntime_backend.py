"""ONNX Runtime on a CPU, in float32 and int8."""

from __future__ import annotations

import torch

from vitrail.errors import VitrailError
from vitrail.graphs.graph_file import GraphRun
from vitrail.graphs.no_telemetry import import_onnxruntime
from vitrail.inference.backends.graph_backend import GraphBackend
from vitrail.inference.backends.onnxruntime_run import compile_onnx


class OnnxRuntimeBackend(GraphBackend):
    """The traced network as ONNX, optimised by ONNX Runtime each time it is loaded."""

    name = "onnxruntime"
    graph_format = "onnx"

    @classmethod
    def choose_precision(cls, name: str) -> str:
        """Its CPU kernels have no bfloat16; int8 has to be asked for."""
        import_onnxruntime()  # where it is missing, that is the sentence to read
        if name == "bfloat16":
            raise VitrailError("the engine onnxruntime does not compute in bf16 on a CPU: choose auto, fp32 or int8")
        return "float32" if name == "auto" else name

    def compile(self, parts: list[memoryview]) -> GraphRun:
        return compile_onnx(parts, torch.get_num_threads())
