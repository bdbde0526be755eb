"""The head that reads one pooled vector: a linear layer, or an MLP."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from vitrail.model.encoder_config import EncoderConfig
from vitrail.model.noise import Dropout


class LinearHead(nn.Module):
    """(B, D) -> (B, classes): dropout, then one linear layer, or an MLP with one tanh layer as in the ViT paper's
    pre-training."""

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        self.dropout = Dropout(config.head_dropout, "head")
        width = config.pooled_width
        self.hidden = nn.Linear(width, config.head_width) if config.head_width is not None else None
        self.out = nn.Linear(config.head_width or width, config.classes, bias=config.head_bias)

    def forward(self, x: Tensor) -> Tensor:
        """(..., D) -> (..., classes)."""
        x = self.dropout(x)
        if self.hidden is not None:
            x = torch.tanh(self.hidden(x))
        return self.out(x)
