"""A network traced for one image size: positions are constants, the batch is free or fixed."""

from __future__ import annotations

import copy
import warnings

import torch
from torch import Tensor, nn
from torch.export import Dim, ExportedProgram

from vitrail.model.encoder import Capture, Encoder
from vitrail.weights.adapt import adapt
from vitrail.weights.checkpoint import Checkpoint

EXAMPLES = 2  # a batch of one would be traced as a constant


def trace(checkpoint: Checkpoint, size: tuple[int, int] | None = None, pooled: bool = False) -> ExportedProgram:
    """The forward pass: normalised images (B, C, h, w) -> outputs (B, ...), for any B.

    size: (height, width), None: the preprocessing's. Positions are resampled to it now, not in the graph. pooled: the
    vector that the head reads, (B, D), is the second output.
    """
    size = size or checkpoint.preprocessing.size
    network = network_at(checkpoint, size)
    images = torch.zeros(EXAMPLES, network.config.channels, *size)
    return trace_module(ForwardPass(network, pooled), images, free_batch=True)


def network_at(checkpoint: Checkpoint, size: tuple[int, int]) -> Encoder:
    """A copy of the network that has this size (height, width) for its own, in float32 on the CPU."""
    network = copy.deepcopy(adapt(checkpoint, image_size=size).model).float().cpu().eval()  # the caller's is kept
    # a learned bias of attention that wants a gradient has another kernel, whose strides the decomposed graph lacks
    return network.requires_grad_(False)


def trace_module(module: nn.Module, example: Tensor, free_batch: bool) -> ExportedProgram:
    """A module of one input as a program. free_batch: the input's first dim may be any number."""
    shapes = ({0: Dim.DYNAMIC},) if free_batch else None
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch warns of its own parts
        return torch.export.export(module.eval(), (example,), dynamic_shapes=shapes)


class ForwardPass(nn.Module):
    """The network with nothing but images to take. pooled: it also gives the vector that the head reads, (B, D)."""

    def __init__(self, network: nn.Module, pooled: bool = False) -> None:
        super().__init__()
        self.network, self.pooled = network, pooled

    def forward(self, images: Tensor) -> Tensor | tuple[Tensor, Tensor]:
        if not self.pooled:
            return self.network(images)
        capture = Capture()
        outputs = self.network(images, capture=capture)
        assert capture.pooled is not None
        return outputs, capture.pooled
