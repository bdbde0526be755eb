"""An int8 file: the network is quantised by itself; what stands before and behind it stays in float."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.export import ExportedProgram

from vitrail.errors import VitrailError
from vitrail.graphs.answer_pass import Answer, AnswerPass
from vitrail.graphs.chain import chain_onnx, chain_openvino
from vitrail.graphs.graph_file import IMAGES, OUTPUTS, Forward, Run
from vitrail.graphs.graph_formats import graph_from_parts
from vitrail.graphs.onnx_graph import onnx_program
from vitrail.graphs.openvino_graph import openvino_model
from vitrail.graphs.trace import EXAMPLES, trace_module
from vitrail.inference.backends.openvino_backend import HINTS, OpenVinoBackend
from vitrail.inference.calibration.calibration_images import calibration_images
from vitrail.inference.calibration.int8_search import Int8Job, search_int8_apart
from vitrail.inference.calibration.quantized_model import graphs_of
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


@dataclass(frozen=True)
class Int8Pass:
    """An int8 network, and what stands before and behind it."""

    model: Any  # all of it as one: an `openvino.Model` or an `onnx.ModelProto`
    record: dict[str, Any]  # what was chosen and what it loses
    run: Run  # the network by itself, the rest in torch: what a file of the model has to give


def int8_pass(checkpoint: Checkpoint, answers: AnswerPass, inputs: Tensor, request: Int8Request) -> Int8Pass:
    """Search the int8 network, and put it between the other parts.

    answers: the whole pass in float, of the size that `inputs` have. inputs: images or pixels, as the file takes them.
    """
    height, width = answers.network.config.image_size
    sized = adapt(checkpoint, image_size=(height, width))
    calibration = calibration_images(sized, request.model_path, request.images)
    hint = _between(request.format)
    int8, record = search_int8_apart(Int8Job(sized, (height, width), request.format, calibration, hint))
    images = inputs[:EXAMPLES]
    parts = [graph_from_parts(request.format, int8)]
    run = _run_apart(answers, graphs_of(parts[0]).compiled(parts[0]))
    if answers.normalise is not None:
        program = trace_module(answers.normalise, images, free_batch=True)
        parts.insert(0, _as_graph(program, request.format, request.input_name, [IMAGES]))
        images = answers.normalise(images)
    with torch.no_grad():
        outputs = answers.network(images)
    parts.append(_as_graph(_answer_program(answers.answer, outputs), request.format, OUTPUTS, request.names))
    model = (chain_onnx if request.format == "onnx" else chain_openvino)(parts)
    return Int8Pass(model, record, run)


def _between(format: str) -> str:
    """What the file's runtime computes in where a layer is not in int8, unless its user says otherwise: the file is
    judged as it will run."""
    return HINTS[OpenVinoBackend.choose_precision("auto")] if format == "openvino" else "f32"


def _run_apart(answers: AnswerPass, network: Forward) -> Run:
    """The pass with another network in its middle."""

    def run(images: NDArray[Any]) -> dict[str, NDArray[Any]]:
        with torch.no_grad():
            inputs = torch.from_numpy(images)
            if answers.normalise is not None:
                inputs = answers.normalise(inputs)
            outputs = torch.from_numpy(np.array(network(inputs.contiguous().numpy())))
            return {name: value.numpy() for name, value in answers.answer(outputs).items()}

    return run


def _answer_program(answer: Answer, outputs: Tensor) -> ExportedProgram:
    return trace_module(answer, outputs.contiguous(), free_batch=True)


def _as_graph(program: ExportedProgram, format: str, input_name: str, names: Sequence[str]) -> Any:
    if format == "onnx":
        return onnx_program(program, input_name, names).model_proto
    return openvino_model(program, input_name, names)
