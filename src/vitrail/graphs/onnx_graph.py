"""A traced network as ONNX."""

from __future__ import annotations

import contextlib
import logging
import warnings
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.export import ExportedProgram

from vitrail.graphs.graph_file import IMAGES, OUTPUTS, POOLED, Run
from vitrail.graphs.installed import import_installed
from vitrail.graphs.no_telemetry import import_onnxruntime

FILE = "model.onnx"
MOST_BYTES = 1_900_000_000  # of weights inside of one file: protobuf ends at 2 GiB, and the graph takes some too


def onnx_model(program: ExportedProgram) -> Any:
    """An `onnx.ModelProto` of what `trace` gives, with named input and outputs; its weights are inside."""
    names = [OUTPUTS, POOLED][: len(program.graph_signature.user_outputs)]
    return onnx_program(program, IMAGES, names).model_proto


def onnx_program(program: ExportedProgram, input_name: str, output_names: Sequence[str]) -> torch.onnx.ONNXProgram:
    """The program as ONNX with named input and outputs; its weights are not copied."""
    for needed in ("onnx", "onnxscript"):
        import_installed(needed)
    with torch.no_grad(), _quietly():
        exported = torch.onnx.export(
            program,
            dynamo=True,
            external_data=False,
            verbose=False,
            input_names=[input_name],
            output_names=list(output_names),
        )
    assert exported is not None
    for node in exported.model.graph:
        node.metadata_props.clear()  # where each line of source stood on this machine
    return exported


def write_onnx(exported: torch.onnx.ONNXProgram, folder: Path, metadata: Mapping[str, str]) -> None:
    """`model.onnx` with these texts in its metadata_props; above 2 GB the weights lie beside it, in model.onnx.data."""
    exported.model.metadata_props.update(metadata)
    weights = sum(value.const_value.nbytes for value in exported.model.graph.initializers.values() if value.const_value)
    exported.save(folder / FILE, external_data=weights > MOST_BYTES)


def write_onnx_proto(model: Any, folder: Path, metadata: Mapping[str, str]) -> None:
    """The same for an `onnx.ModelProto`, which is below 2 GB."""
    onnx = import_installed("onnx")
    onnx.helper.set_model_props(model, dict(metadata))
    onnx.save(model, folder / FILE)


def onnx_parts(model: Any) -> list[bytes]:
    """An `onnx.ModelProto` as the one part of a file."""
    return [model.SerializeToString()]


def onnx_from_parts(parts: Sequence[bytes]) -> Any:
    """What `onnx_parts` was given."""
    return import_installed("onnx").load_model_from_string(parts[0])


def open_onnx(folder: Path) -> Run:
    """The file as ONNX Runtime runs it."""
    session = import_onnxruntime().InferenceSession(folder / FILE, providers=["CPUExecutionProvider"])
    input_name, names = session.get_inputs()[0].name, [output.name for output in session.get_outputs()]

    def run(images: np.ndarray) -> dict[str, np.ndarray]:
        return dict(zip(names, session.run(names, {input_name: images}), strict=True))

    return run


@contextlib.contextmanager
def _quietly() -> Iterator[None]:
    """torch warns of its own parts, and the optimizer tells of every operation that it leaves alone."""
    logger = logging.getLogger("onnxscript")
    before = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(before)
