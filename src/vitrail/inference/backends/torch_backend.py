"""PyTorch, eager: every device and every head, and whatever is to be seen on the way."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from vitrail.errors import VitrailError
from vitrail.inference.backends.backend import CAPTURES, Pictures
from vitrail.model.encoder import Capture
from vitrail.model.precision import autocast, is_mixed
from vitrail.weights.checkpoint import Checkpoint

AUTOGRAD = {"inference": torch.inference_mode, "no_grad": torch.no_grad, "grad": torch.enable_grad}


class TorchBackend:
    """Runs a network as it is: a `ViT`, or one that DDP or FSDP wraps.

    precision: "auto" is bfloat16 where the hardware computes in it, "float32" and "bfloat16" set it. Heads are float32
    in each (`model/precision.py`).
    autograd: "inference" is torch's fastest mode; "no_grad" is for a network that trains on, because its tensors must
    be fit for autograd later; "grad" keeps the graph, for explanations that differentiate the outputs.
    """

    name = "torch"
    captures = frozenset(CAPTURES)

    def __init__(self, network: nn.Module, precision: str = "auto", *, autograd: str = "inference") -> None:
        self.network = network
        self._precision = precision
        self._autograd = AUTOGRAD[autograd]

    @classmethod
    def load(
        cls, checkpoint: Checkpoint, *, device: str = "auto", precision: str = "auto", pictures: Pictures | None = None
    ) -> TorchBackend:
        """The checkpoint's own model, moved to the device."""
        is_mixed("cpu", precision)  # refuses int8
        return cls(checkpoint.model.to(choose_device(device)), precision)

    @property
    def device(self) -> torch.device:
        """Where the network's weights are."""
        return next(self.network.parameters()).device

    @property
    def precision(self) -> str:
        """The name of the type that it multiplies in."""
        weight = next(self.network.parameters())
        return "bfloat16" if is_mixed(weight.device, self._precision) else str(weight.dtype).removeprefix("torch.")

    def __call__(self, images: Tensor, capture: Capture | None = None) -> Tensor:
        if self.network.training:
            self.network.eval()
        weight = next(self.network.parameters())
        with self._autograd(), autocast(weight.device, self._precision):
            outputs = self.run(images.to(weight.device, weight.dtype), capture)
        return outputs.float()

    def run(self, images: Tensor, capture: Capture | None) -> Tensor:
        """The network's own forward pass."""
        outputs: Tensor = self.network(images, capture=capture)
        return outputs


def choose_device(name: str) -> torch.device:
    """The device of that name, once it is certain that it is there; "auto" is the first of cuda, mps, cpu."""
    available = {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available(), "cpu": True}
    if name == "auto":
        return torch.device(next(kind for kind, is_there in available.items() if is_there))
    try:
        device = torch.device(name)
    except RuntimeError:
        raise VitrailError(f"the device is {name!r}; choose one of auto, {', '.join(available)}") from None
    if not available.get(device.type, False):
        raise VitrailError(f"there is no device {name!r} on this machine: choose auto or cpu")
    return device
