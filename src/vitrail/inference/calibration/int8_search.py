"""The search for int8 in a process of its own: OpenVINO's CPU plugin crashes in some of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from vitrail.errors import VitrailError
from vitrail.graphs.graph_formats import graph_parts, traced_graph
from vitrail.inference.calibration.calibration_images import CalibrationImages
from vitrail.inference.calibration.quantized_model import quantized_model
from vitrail.inference.child.run_in_child import ChildCrash, can_be_sent, run_in_child
from vitrail.terminal import print_error
from vitrail.weights.checkpoint import Checkpoint

ATTEMPTS = 2


@dataclass(frozen=True)
class Int8Job:
    """What is searched, and on what."""

    checkpoint: Checkpoint
    size: tuple[int, int]  # height, width
    graph_format: str  # openvino or onnx
    pictures: CalibrationImages
    hint: str = "f32"  # what runs between int8 layers, f32 or, with OpenVINO, bf16
    pooled: bool = False  # whether the vector that the head reads is the second output


def search_int8_apart(job: Int8Job) -> tuple[list[bytes], dict[str, Any]]:
    """The int8 network as the parts of a file (`graphs/`), and its record (`quantized_model`).

    A crash is tried once more, and then a VitrailError. A network with modules that only the caller's script has is
    searched in this process.
    """
    if not can_be_sent(job.checkpoint.model):
        return find_int8(job, torch.get_num_threads())
    for attempt in range(1, ATTEMPTS + 1):
        try:
            return run_in_child(find_int8, job, torch.get_num_threads())
        except ChildCrash as crash:
            how = crash.how
            if attempt < ATTEMPTS:
                print_error(f"the search for int8 crashed ({how}): it is tried once more")
    raise VitrailError(
        f"int8 was not made, because OpenVINO or NNCF crashed in its search, {ATTEMPTS} times ({how}): run it again "
        "later, or use bf16 or fp32"
    )


def find_int8(job: Int8Job, threads: int) -> tuple[list[bytes], dict[str, Any]]:
    """The search itself, by the runtime that will run the graph. threads: of torch and OpenVINO."""
    torch.set_num_threads(threads)
    model = traced_graph(job.graph_format, job.checkpoint, job.size, job.pooled)
    int8, record = quantized_model(job.checkpoint, model, job.pictures, hint=job.hint)
    return graph_parts(job.graph_format, int8), record
