"""Graphs one after another as one: each takes the one output of the graph before it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from vitrail.graphs.installed import import_installed
from vitrail.graphs.no_telemetry import import_silently


def chain_openvino(models: Sequence[Any]) -> Any:
    """Models of OpenVINO as one; they are used up."""
    openvino = import_silently("openvino")
    chained, *rest = models
    for model in rest:
        output = chained.get_results()[0].input_value(0)
        output.get_tensor().set_names(set())  # no longer an output of its own
        for target in model.get_parameters()[0].output(0).get_target_inputs():
            target.replace_source_output(output)
        chained = openvino.Model(model.get_results(), chained.get_parameters(), "vitrail")
    return chained


def chain_onnx(models: Sequence[Any]) -> Any:
    """`onnx.ModelProto`s as one. Names inside of the later ones get a prefix, their outputs keep theirs."""
    compose = import_installed("onnx.compose")
    chained, *rest = models
    for place, model in enumerate(rest, start=1):
        model = compose.add_prefix(model, f"part{place}_", rename_outputs=False)
        model.ir_version = chained.ir_version = max(model.ir_version, chained.ir_version)
        joint = (chained.graph.output[0].name, model.graph.input[0].name)
        chained = compose.merge_models(chained, model, io_map=[joint])
    return chained
