"""A graph of ONNX on this CPU by ONNX Runtime: NumPy in, NumPy out. Nothing here waits for torch."""

from __future__ import annotations

from collections.abc import Sequence

from vitrail.graphs.graph_file import IMAGES, Floats, GraphRun
from vitrail.graphs.no_telemetry import import_onnxruntime


def compile_onnx(parts: Sequence[memoryview], threads: int) -> GraphRun:
    """The part of a file, ready to run in float32, or in int8 where the graph is."""
    runtime = import_onnxruntime()
    options = runtime.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")  # threads that decode need the cores
    options.log_severity_level = 3  # errors
    session = runtime.InferenceSession(bytes(parts[0]), options, providers=["CPUExecutionProvider"])

    def run(images: Floats) -> list[Floats]:
        outputs: list[Floats] = session.run(None, {IMAGES: images})
        return outputs

    return run
