"""A traced network as an OpenVINO model."""

from __future__ import annotations

from typing import Any

from torch.export import ExportedProgram

from vitrail.graphs.no_telemetry import import_silently
from vitrail.graphs.trace import IMAGES, OUTPUTS


def openvino_model(program: ExportedProgram) -> Any:
    """An `openvino.Model` with named input and output, in float32: whoever compiles it says what it computes in."""
    openvino = import_silently("openvino")
    model = openvino.convert_model(program)
    model.inputs[0].get_tensor().set_names({IMAGES})
    model.outputs[0].get_tensor().set_names({OUTPUTS})
    return model
