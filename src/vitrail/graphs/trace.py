"""A network traced for one image size: positions are constants, the batch is free or fixed."""

from __future__ import annotations

import copy

import torch
from torch import nn
from torch.export import Dim, ExportedProgram

from vitrail.model.encoder import Encoder
from vitrail.weights.adapt import adapt
from vitrail.weights.checkpoint import Checkpoint

IMAGES, OUTPUTS = "images", "outputs"  # the names of a graph's input and of its first output
EXAMPLES = 2  # a batch of one would be traced as a constant


def trace(checkpoint: Checkpoint, size: tuple[int, int] | None = None, batch: int | None = None) -> ExportedProgram:
    """The forward pass: normalised images (B, C, h, w) -> outputs (B, ...).

    size: (height, width), None: the preprocessing's. Positions are resampled to it now, not in the graph. batch: None:
    any.
    """
    size = size or checkpoint.preprocessing.size
    network = copy.deepcopy(adapt(checkpoint, image_size=size).model).float().cpu().eval()  # the caller's is kept
    network.requires_grad_(
        False
    )  # else a learned bias of attention changes the kernel, and strides, when it is decomposed
    images = torch.zeros(batch or EXAMPLES, network.config.channels, *size)
    shapes = None if batch else ({0: Dim.DYNAMIC},)
    with torch.no_grad():
        return torch.export.export(_ForwardPass(network), (images,), dynamic_shapes=shapes)


class _ForwardPass(nn.Module):
    """The network with nothing but images to take."""

    def __init__(self, network: Encoder) -> None:
        super().__init__()
        self.network = network

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self.network(images)
