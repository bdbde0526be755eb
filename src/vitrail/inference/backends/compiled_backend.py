"""PyTorch, compiled: the network as one program of fused loops, made by `torch.compile` at the first batch."""

from __future__ import annotations

import shutil

import torch
from torch import Tensor, nn

from vitrail.errors import VitrailError
from vitrail.graphs.trace import ForwardPass
from vitrail.inference.backends.backend import Pictures
from vitrail.inference.backends.torch_backend import TorchBackend, choose_device
from vitrail.model.encoder import Capture
from vitrail.model.precision import is_mixed
from vitrail.weights.checkpoint import Checkpoint

COMPILERS = ("g++", "clang++", "c++", "cl")  # one of these builds the loops for a CPU


def check_compiler(device: torch.device, what: str, otherwise: str) -> None:
    """Refuse where there is nothing to build loops for a CPU with. what: needs it; otherwise: what can be done."""
    if device.type == "cpu" and not any(shutil.which(name) for name in COMPILERS):
        raise VitrailError(f"{what} needs a C++ compiler, and there is none: install g++, or {otherwise}")


class CompiledBackend(TorchBackend):
    """As `TorchBackend`; a pass that is asked to keep blocks runs without the compiler.

    pooled: the compiled network also gives the vector that the head reads; else that is not compiled either.
    """

    name = "compiled"

    def __init__(self, network: nn.Module, precision: str = "auto", pooled: bool = False) -> None:
        super().__init__(network, precision)
        self._pooled = pooled
        self._compiled = torch.compile(
            ForwardPass(network, pooled) if pooled else network
        )  # the first other batch size makes the batch dynamic

    @classmethod
    def load(
        cls, checkpoint: Checkpoint, *, device: str = "auto", precision: str = "auto", pictures: Pictures | None = None
    ) -> CompiledBackend:
        """The checkpoint's own model, moved to the device."""
        is_mixed("cpu", precision)  # refuses int8
        chosen = choose_device(device)
        check_compiler(chosen, "the engine compiled", "choose another engine")
        return cls(checkpoint.model.to(chosen), precision, pooled=checkpoint.familiarity is not None)

    def run(self, images: Tensor, capture: Capture | None) -> Tensor:
        """The outputs, by the compiled network where it gives all that is to be kept."""
        looks = capture is not None and (bool(capture.blocks) or capture.all_tokens or capture.query_attention)
        if looks or (capture is not None and not self._pooled):
            return super().run(images, capture)
        if not self._pooled:
            return self._compiled(images)
        outputs, pooled = self._compiled(images)
        if capture is not None:
            capture.pooled = pooled
        return outputs
