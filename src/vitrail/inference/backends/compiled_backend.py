"""PyTorch, compiled: the network as one program of fused loops, made by `torch.compile` at the first batch."""

from __future__ import annotations

import shutil

import torch
from torch import Tensor, nn

from vitrail.errors import VitrailError
from vitrail.inference.backends.backend import Pictures
from vitrail.inference.backends.torch_backend import TorchBackend, choose_device
from vitrail.model.encoder import Capture
from vitrail.model.precision import is_mixed
from vitrail.weights.checkpoint import Checkpoint

COMPILERS = ("g++", "clang++", "c++", "cl")  # one of these builds the loops for a CPU


class CompiledBackend(TorchBackend):
    """As `TorchBackend`; a pass that is asked to keep something besides its outputs runs without the compiler."""

    name = "compiled"

    def __init__(self, network: nn.Module, precision: str = "auto") -> None:
        super().__init__(network, precision)
        self._compiled = torch.compile(network)  # the first other batch size makes the batch dynamic

    @classmethod
    def load(
        cls, checkpoint: Checkpoint, *, device: str = "auto", precision: str = "auto", pictures: Pictures | None = None
    ) -> CompiledBackend:
        """The checkpoint's own model, moved to the device."""
        is_mixed("cpu", precision)  # refuses int8
        chosen = choose_device(device)
        if chosen.type == "cpu" and not any(shutil.which(name) for name in COMPILERS):
            raise VitrailError(
                "the engine compiled needs a C++ compiler, and there is none: install g++, or choose another engine"
            )
        return cls(checkpoint.model.to(chosen), precision)

    def run(self, images: Tensor, capture: Capture | None) -> Tensor:
        """The outputs, by the compiled network where nothing is to be kept."""
        return super().run(images, capture) if capture is not None else self._compiled(images)
