"""An int8 file: the network is quantised by itself; what stands before and behind it stays in float."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.export import ExportedProgram

from vitrail.errors import VitrailError
from vitrail.graphs.answer_pass import Answer, AnswerPass
from vitrail.graphs.chain import chain_onnx, chain_openvino
from vitrail.graphs.graph_file import IMAGES, OUTPUTS
from vitrail.graphs.graph_formats import graph_from_parts
from vitrail.graphs.onnx_graph import onnx_program
from vitrail.graphs.openvino_graph import openvino_model
from vitrail.graphs.trace import EXAMPLES, trace_module
from vitrail.inference.calibration.calibration_images import calibration_images
from vitrail.inference.calibration.int8_search import Int8Job, search_int8_apart
from vitrail.weights.adapt import adapt
from vitrail.weights.checkpoint import Checkpoint


@dataclass(frozen=True)
class Int8Request:
    """What an int8 file is made of."""

    format: str  # onnx or openvino
    input_name: str
    names: Sequence[str]  # of its outputs
    model_path: str | Path | None  # beside which calibration pictures may lie
    images: str | Path | None  # a folder of them


def check_int8(format: str, batch: int | None, extras: Sequence[str]) -> None:
    """Refuse what an int8 file cannot be, in a sentence."""
    if format == "torch":
        raise VitrailError("int8 is for ONNX Runtime and OpenVINO: choose --format onnx or openvino, or bf16 for torch")
    if batch is not None:
        raise VitrailError(f"int8 is calibrated picture by picture and takes any batch: leave out --batch {batch}")
    if extras:
        raise VitrailError(f"an int8 file gives answers alone: leave out --outputs {','.join(extras)}, or choose bf16")


def int8_graph(checkpoint: Checkpoint, answers: AnswerPass, inputs: Tensor, request: Int8Request) -> tuple[Any, Any]:
    """The `openvino.Model` or `onnx.ModelProto`, and the record of what was chosen and what it loses.

    answers: the whole pass in float, of the size that `inputs` have. inputs: images or pixels, as the file takes them.
    """
    height, width = answers.network.config.image_size
    sized = adapt(checkpoint, image_size=(height, width))
    calibration = calibration_images(sized, request.model_path, request.images)
    int8, record = search_int8_apart(Int8Job(sized, (height, width), request.format, calibration))
    images = inputs[:EXAMPLES]
    parts = [graph_from_parts(request.format, int8)]
    if answers.normalise is not None:
        program = trace_module(answers.normalise, images, free_batch=True)
        parts.insert(0, _as_graph(program, request.format, request.input_name, [IMAGES]))
        images = answers.normalise(images)
    with torch.no_grad():
        outputs = answers.network(images)
    parts.append(_as_graph(_answer_program(answers.answer, outputs), request.format, OUTPUTS, request.names))
    return (chain_onnx if request.format == "onnx" else chain_openvino)(parts), record


def _answer_program(answer: Answer, outputs: Tensor) -> ExportedProgram:
    return trace_module(answer, outputs.contiguous(), free_batch=True)


def _as_graph(program: ExportedProgram, format: str, input_name: str, names: Sequence[str]) -> Any:
    if format == "onnx":
        return onnx_program(program, input_name, names).model_proto
    return openvino_model(program, input_name, names)
