"""The formats that a traced network is kept in, by name: how it is traced, and turned into parts of a file and back."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from vitrail.graphs.onnx_graph import onnx_from_parts, onnx_model, onnx_parts
from vitrail.graphs.openvino_graph import openvino_from_parts, openvino_model, openvino_parts
from vitrail.graphs.trace import trace
from vitrail.weights.checkpoint import Checkpoint

_FORMATS = {
    "onnx": (onnx_model, onnx_parts, onnx_from_parts),
    "openvino": (openvino_model, openvino_parts, openvino_from_parts),
}


def traced_graph(graph_format: str, checkpoint: Checkpoint, size: tuple[int, int], pooled: bool = False) -> Any:
    """The network in float32 for a size (height, width): an `openvino.Model` or an `onnx.ModelProto`.

    pooled: the vector that the head reads is its second output.
    """
    return _FORMATS[graph_format][0](trace(checkpoint, size, pooled=pooled))


def graph_parts(graph_format: str, model: Any) -> list[bytes]:
    """What a file of it holds."""
    return _FORMATS[graph_format][1](model)


def graph_from_parts(graph_format: str, parts: Sequence[bytes]) -> Any:
    """What `graph_parts` was given."""
    return _FORMATS[graph_format][2](parts)
