"""What stands behind an encoder while it learns without labels, and is thrown away afterwards."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

HIDDEN, BOTTLENECK = 2048, 256  # of the paper


class ProjectionHead(nn.Module):
    """Three linear layers with GELU between them, and a result of length 1: (B, D) -> (B, outputs).
    norm: batch norm before each GELU, in the place of the linear layer's bias."""

    def __init__(self, width: int, hidden: int = HIDDEN, outputs: int = BOTTLENECK, *, norm: bool = False) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for before in (width, hidden):
            layers += [nn.Linear(before, hidden, bias=not norm)]
            layers += [nn.BatchNorm1d(hidden), nn.GELU()] if norm else [nn.GELU()]
        self.mlp = nn.Sequential(*layers, nn.Linear(hidden, outputs))
        for layer in self.mlp:
            if isinstance(layer, nn.Linear):
                nn.init.trunc_normal_(layer.weight, std=0.02)
                if layer.bias is not None:
                    nn.init.zeros_(layer.bias)

    def forward(self, x: Tensor) -> Tensor:
        """(B, D) -> (B, outputs), each of length 1, in float32."""
        return F.normalize(self.mlp(x).float(), dim=-1)


class DINOHead(nn.Module):
    """The projection, then its cosine with every prototype: (B, D) -> (B, K).

    The last layer is weight-normalised: only the directions of its rows are learnt, their lengths stay 1
    (`norm_last_layer` of the paper's code).
    """

    def __init__(self, width: int, prototypes: int, hidden: int = HIDDEN, bottleneck: int = BOTTLENECK) -> None:
        super().__init__()
        self.projection = ProjectionHead(width, hidden, bottleneck)
        self.prototypes = nn.Parameter(torch.empty(prototypes, bottleneck))
        nn.init.trunc_normal_(self.prototypes, std=0.02)

    def forward(self, x: Tensor) -> Tensor:
        """(B, D) -> (B, K), between -1 and 1. In mixed precision the product itself is in bfloat16."""
        return F.linear(self.projection(x), F.normalize(self.prototypes, dim=-1)).float()
