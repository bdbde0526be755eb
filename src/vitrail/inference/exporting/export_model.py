"""A model as a file for other runtimes: traced with its answers, written beside, checked, then put into its place."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from vitrail import __version__
from vitrail.errors import VitrailError
from vitrail.files import replacing_all
from vitrail.graphs import onnx_graph, openvino_graph, torch_graph
from vitrail.graphs.answer_pass import EXTRAS, AnswerPass, Normalisation, weights_in_bfloat16
from vitrail.graphs.graph_file import IMAGES, METADATA, Run
from vitrail.graphs.trace import EXAMPLES, network_at, trace_module
from vitrail.inference.engine import task_of
from vitrail.inference.exporting.export_check import (
    Check,
    check_images,
    compare,
    refuse_if_off,
    run_in_batches,
    torch_run,
)
from vitrail.inference.exporting.export_int8 import Int8Pass, Int8Request, check_int8, int8_pass
from vitrail.inference.image_processor import ImageProcessor
from vitrail.tasks.registry import EMBED
from vitrail.tasks.task import Task
from vitrail.weights.checkpoint import Checkpoint

FORMATS = ("onnx", "openvino", "torch")
PRECISIONS = ("fp32", "bf16", "int8")
PREPROCESSING = ("outside", "inside")
PIXELS = "pixels"  # the input of a graph that normalises itself
BESIDE = "model.json"  # the metadata once more, for readers that do not open the file's own, such as a browser
CALIBRATION = ("temperature", "threshold", "nms_iou")  # of a task's state, what made answers of outputs

Write = Callable[[Path, Mapping[str, str]], None]


@dataclass(frozen=True)
class ExportSettings:
    """What is asked of an export."""

    format: str = "onnx"
    size: tuple[int, int] | None = None  # height, width; None: the model's own
    batch: int | None = None  # images at once; None: any number
    precision: str = "fp32"
    inside: bool = False  # whether the graph normalises the pixels itself
    outputs: tuple[str, ...] = ()  # names of EXTRAS
    images: str | Path | None = None  # what the file is checked on, and int8 calibrated on; None: noise
    model_path: str | Path | None = None  # beside which a run has left pictures to calibrate on

    @property
    def input_name(self) -> str:
        """What the graph's input is called."""
        return PIXELS if self.inside else IMAGES


@dataclass(frozen=True)
class ExportedModel:
    """What was written."""

    path: Path
    metadata: dict[str, Any]
    check: Check


def export_checkpoint(checkpoint: Checkpoint, folder: Path, settings: ExportSettings) -> ExportedModel:
    """Write the model's file into the folder, once it was found to give the model's answers."""
    file, open_file = _format(settings.format)
    _refuse(folder, file, settings)
    size = settings.size or checkpoint.preprocessing.size
    preprocessing = checkpoint.preprocessing.replace(size=size)
    network = network_at(checkpoint, size)
    task = None if checkpoint.task == EMBED or not checkpoint.config.classes else task_of(checkpoint)
    normalisation = Normalisation(preprocessing.mean, preprocessing.std) if settings.inside else None
    decode = None if task is None else partial(task.graph_outputs, size=size)
    answers = AnswerPass(network, decode, settings.outputs, normalisation)
    processor = ImageProcessor(preprocessing, checkpoint.config.is_dense)
    pixels, of = check_images(processor, settings.images)
    inputs = np.stack(pixels) if settings.inside else processor.transform(pixels).numpy()
    expected = run_in_batches(torch_run(answers), inputs, settings.batch)  # before the weights are rounded
    writer = _writer(checkpoint, answers, inputs, settings, tuple(expected))
    metadata: dict[str, Any] = {
        "vitrail": __version__,
        "task": checkpoint.task,
        "labels": None if task is None else task.labels,
        "preprocessing": preprocessing.to_dict() | {"inside": settings.inside},
        "calibration": calibration_of(checkpoint, task),
        "input": _described_input(settings, inputs),
        "outputs": _described_outputs(task, expected),
        "grid": [-(-side // cell) for side, cell in zip(size, checkpoint.config.levels[-1].cell, strict=True)],
        "precision": settings.precision,
        **({} if writer.int8 is None else {"int8": writer.int8.record}),
    }
    with replacing_all(folder) as temporary:
        writer.write(temporary, {})
        given = run_in_batches(open_file(temporary), inputs, settings.batch)
        threshold = metadata["calibration"].get("threshold")
        compared = partial(compare, of=of, several_labels=task is not None and task.link == "sigmoid")
        check = compared(expected, given, threshold=threshold)
        if writer.int8 is not None:  # whose network was judged by its metric; is this file that network?
            expected = run_in_batches(writer.int8.run, inputs, settings.batch)
        refuse_if_off(compared(expected, given, threshold=threshold), expected, settings.precision)
        metadata["check"] = check.to_dict()
        text = json.dumps(metadata, ensure_ascii=False)
        writer.write(temporary, {METADATA: text})
        (temporary / BESIDE).write_text(text + "\n", encoding="utf-8")
    return ExportedModel(folder / file, metadata, check)


def calibration_of(checkpoint: Checkpoint, task: Task | None) -> dict[str, Any]:
    """What the model's file says of its calibration: a temperature is in the weights already, a threshold is the
    reader's to apply, and the overlap of non-maximum suppression is in the graph."""
    learned = checkpoint.provenance.get("training")
    state = learned.get("task") if isinstance(learned, dict) else None
    known = (task.state_dict() if task is not None and task.dense else {}) | (state if isinstance(state, dict) else {})
    return {name: known[name] for name in CALIBRATION if name in known}


def _refuse(folder: Path, file: str, settings: ExportSettings) -> None:
    if settings.precision == "int8":
        check_int8(settings.format, settings.batch, settings.outputs)
    if folder.is_file():
        raise VitrailError(f"{folder} is a file: give a folder to write to")
    for name in (file, BESIDE):
        if (folder / name).exists():
            raise VitrailError(f"{folder / name} is already there: give another folder, or delete it first")


def _format(name: str) -> tuple[str, Callable[[Path], Run]]:
    """A format's file, and how it is opened."""
    if name == "onnx":
        return onnx_graph.FILE, onnx_graph.open_onnx
    if name == "openvino":
        return openvino_graph.FILE, openvino_graph.open_openvino
    return torch_graph.FILE, torch_graph.open_torch


class _Writer(NamedTuple):
    write: Write  # the file, with metadata, into a folder
    int8: Int8Pass | None = None  # what the file is, if it is one in int8


def _writer(
    checkpoint: Checkpoint, answers: AnswerPass, inputs: np.ndarray, settings: ExportSettings, names: tuple[str, ...]
) -> _Writer:
    """The model traced for its format, ready to be written."""
    if settings.precision == "int8":
        request = Int8Request(settings.format, settings.input_name, names, settings.model_path, settings.images)
        int8 = int8_pass(checkpoint, answers, torch.from_numpy(inputs), request)
        write = onnx_graph.write_onnx_proto if settings.format == "onnx" else openvino_graph.write_openvino
        return _Writer(partial(write, int8.model), int8)
    if settings.precision == "bf16":
        weights_in_bfloat16(answers.network)
    example = torch.from_numpy(np.resize(inputs, (settings.batch or EXAMPLES, *inputs.shape[1:])))
    program = trace_module(answers, example, free_batch=settings.batch is None)
    if settings.format == "onnx":
        return _Writer(partial(onnx_graph.write_onnx, onnx_graph.onnx_program(program, settings.input_name, names)))
    if settings.format == "openvino":
        model = openvino_graph.openvino_model(program, settings.input_name, names)
        return _Writer(partial(openvino_graph.write_openvino, model))
    return _Writer(partial(torch_graph.write_torch, program))


def _described_input(settings: ExportSettings, inputs: np.ndarray) -> dict[str, Any]:
    layout = "uint8 pixels (B, h, w, C)" if settings.inside else "float32 (B, C, h, w), (pixel / 255 - mean) / std"
    shape = [settings.batch, *inputs.shape[1:]]  # None: any number
    return {"name": settings.input_name, "type": str(inputs.dtype), "shape": shape, "meaning": layout}


def _described_outputs(task: Task | None, expected: Mapping[str, np.ndarray]) -> dict[str, Any]:
    words = {**EXTRAS, **({} if task is None else task.graph_words)}
    return {
        name: {"type": str(value.dtype), "shape": list(value.shape[1:]), "meaning": words[name]}
        for name, value in expected.items()
    }
