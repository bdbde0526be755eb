"""The forward pass that explanations read: run once, kept whole, in the model's evaluation mode."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from vitrail.errors import VitrailError
from vitrail.inference.backends.torch_backend import TorchBackend
from vitrail.inference.engine import Engine
from vitrail.inference.image_processor import ImageProcessor
from vitrail.model.encoder import BlockStep, Capture, Encoder
from vitrail.weights.checkpoint import Checkpoint


class PooledNetwork(nn.Module):
    """A dense model without its head, which answers about places: its pooled vector (B, D) is what is explained."""

    def __init__(self, model: Encoder) -> None:
        super().__init__()
        self.model = model

    def forward(self, images: Tensor, capture: Capture | None = None) -> Tensor:
        return self.model.forward_embedding(self.model.embed(images), capture=capture)


EXPLAINED_IN = "float32"  # where nothing else is asked for: gradients in 8 bits are mostly noise


def differentiable_backend(model: Encoder, precision: str = EXPLAINED_IN) -> TorchBackend:
    """The model, its outputs with their autograd graph."""
    network = PooledNetwork(model) if model.config.is_dense else model
    return TorchBackend(network, precision, autograd="grad")


def explanation_engine(
    model: str | Path | Checkpoint | Engine,
    *,
    device: str = "auto",
    precision: str = EXPLAINED_IN,
    image_size: tuple[int, int] | None = None,
) -> Engine:
    """The engine that explanations run on; it shares the model's weights. An untrained preset will do.

    image_size: another than the model's, (height, width).
    """
    engine = Engine.open(model, untrained=True, device=device)
    if not isinstance(engine.backend, TorchBackend):
        raise VitrailError(f"explanations need gradients, which the engine {engine.backend.name} lacks: use torch")
    preprocessing = engine.checkpoint.preprocessing
    if image_size is not None:
        preprocessing = preprocessing.replace(size=image_size)
    backend = differentiable_backend(engine.checkpoint.model, precision)
    return Engine(engine.checkpoint, backend, processor=ImageProcessor(preprocessing))


@dataclass(frozen=True)
class ForwardPass:
    """All that one pass over images leaves for the methods: no method needs to run the encoder's blocks again."""

    outputs: Tensor  # (B, K), with its autograd graph, which weighted attention differentiates
    steps: Sequence[BlockStep]  # every block's
    normed: Tensor  # (B, M, D): the last block's output after the final norm over tokens


def run_forward_pass(
    model: Encoder, images: Tensor, forward: Callable[[Tensor, Capture], Tensor] | None = None
) -> ForwardPass:
    """images (B, C, H, W), normalised. A dense head is not run: what is explained then is the pooled vector.

    forward: of the model's `explanation_engine`, where there is one.
    """
    forward = forward or differentiable_backend(model)
    capture = Capture(blocks=range(model.depth), all_tokens=True, heads_output=True)
    with evaluation_mode(model):
        outputs = forward(images.detach().requires_grad_(), capture)  # frozen weights alone would leave no graph
    assert capture.normed is not None
    return ForwardPass(outputs, list(capture.steps.values()), capture.normed)


@torch.no_grad()
def run_steps(model: Encoder, images: Tensor, pad: bool = False) -> list[BlockStep]:
    """Every block's step, without a graph."""
    capture = Capture(blocks=range(model.depth))
    with evaluation_mode(model):
        model.encode(model.embed(images, pad), capture)
    return list(capture.steps.values())


@contextlib.contextmanager
def evaluation_mode(model: nn.Module) -> Iterator[None]:
    """No dropout and drop path inside; afterwards every module is in the mode it was in before."""
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        yield
    finally:
        for module, mode in modes:
            module.training = mode
