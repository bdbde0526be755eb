"""A traced network as ONNX."""

from __future__ import annotations

from typing import Any

import torch
from torch.export import ExportedProgram

from vitrail.graphs.trace import IMAGES, OUTPUTS


def onnx_model(program: ExportedProgram) -> Any:
    """An `onnx.ModelProto` with named input and output; its weights are inside."""
    exported = torch.onnx.export(
        program, dynamo=True, external_data=False, verbose=False, input_names=[IMAGES], output_names=[OUTPUTS]
    )
    assert exported is not None
    return exported.model_proto
