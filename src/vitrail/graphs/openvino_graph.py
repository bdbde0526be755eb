"""A traced network as an OpenVINO model."""

from __future__ import annotations

import tempfile
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from torch.export import ExportedProgram

from vitrail.graphs.graph_file import IMAGES, OUTPUTS, POOLED, Run
from vitrail.graphs.no_telemetry import import_silently

FILE = "model.xml"  # and model.bin beside it, with the weights
EXACT = {"INFERENCE_PRECISION_HINT": "f32"}  # else OpenVINO computes in bfloat16 where the CPU has it


def openvino_model(
    program: ExportedProgram, input_name: str = IMAGES, output_names: Sequence[str] | None = None
) -> Any:
    """An `openvino.Model` with named input and outputs, in float32: whoever compiles it says what it computes in.

    output_names: None: of what `trace` gives.
    """
    openvino = import_silently("openvino")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch warns of its own parts
        model = openvino.convert_model(program)
    model.inputs[0].get_tensor().set_names({input_name})
    names = (OUTPUTS, POOLED)[: len(model.outputs)] if output_names is None else output_names
    for output, name in zip(model.outputs, names, strict=True):
        output.get_tensor().set_names({name})
    return model


def write_openvino(model: Any, folder: Path, metadata: Mapping[str, str]) -> None:
    """`model.xml` with these texts in its rt_info, and `model.bin` with the weights as they are."""
    for name, text in metadata.items():
        model.set_rt_info(text, [name])
    import_silently("openvino").save_model(model, folder / FILE, compress_to_fp16=False)


def openvino_parts(model: Any) -> list[bytes]:
    """The graph as text, and its weights as they are."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, FILE)
        import_silently("openvino").save_model(model, path, compress_to_fp16=False)
        return [path.read_bytes(), path.with_suffix(".bin").read_bytes()]


def openvino_from_parts(parts: Sequence[bytes]) -> Any:
    """What `openvino_parts` was given."""
    openvino = import_silently("openvino")
    text, weights = parts
    return openvino.Core().read_model(text, openvino.Tensor(np.frombuffer(weights, np.uint8).copy()))


def open_openvino(folder: Path) -> Run:
    """The file as OpenVINO runs it on the CPU, in float32."""
    core = import_silently("openvino").Core()
    model = core.read_model(folder / FILE)
    # before it is compiled: afterwards outputs also have the names of what is fused in them
    names = [output.get_any_name() for output in model.outputs]
    compiled = core.compile_model(model, "CPU", EXACT)

    def run(images: np.ndarray) -> dict[str, np.ndarray]:
        results = compiled(images)
        return {name: np.array(results[place]) for place, name in enumerate(names)}

    return run
