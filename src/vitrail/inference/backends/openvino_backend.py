"""OpenVINO on a CPU: float32, bfloat16 where the processor has instructions for it, and int8."""

from __future__ import annotations

import torch

from vitrail.errors import VitrailError
from vitrail.graphs.graph_file import GraphRun
from vitrail.inference.backends import openvino_run
from vitrail.inference.backends.graph_backend import GraphBackend
from vitrail.model import precision as hardware

HINTS = {"float32": "f32", "bfloat16": "bf16"}  # OpenVINO's names; without one it takes bfloat16 where it can


class OpenVinoBackend(GraphBackend):
    """The traced network, compiled by OpenVINO's CPU plugin at the first batch, in a fraction of a second."""

    name = "openvino"
    graph_format = "openvino"

    @classmethod
    def choose_precision(cls, name: str) -> str:
        """`auto` is bfloat16 where both the hardware and OpenVINO compute in it; int8 has to be asked for."""
        has_bf16 = "BF16" in openvino_run.core().get_property("CPU", "OPTIMIZATION_CAPABILITIES")
        if name == "auto":
            return "bfloat16" if has_bf16 and hardware.computes_bf16("cpu") else "float32"
        if name == "bfloat16" and not has_bf16:
            raise VitrailError("this processor has no bf16, so OpenVINO cannot compute in it: choose fp32")
        return name

    @property
    def float_hint(self) -> str:
        """What it computes in; in int8, where a layer is not."""
        return HINTS[self.choose_precision("auto") if self.precision == "int8" else self.precision]

    def compile(self, parts: list[memoryview]) -> GraphRun:
        return openvino_run.compile_openvino(parts, self.float_hint, torch.get_num_threads())
