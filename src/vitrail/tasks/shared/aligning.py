"""Where a loss compares logits with a mask: at the logits' own resolution, but at no less than half of a large mask's,
and at every pixel of a small one.

Logits brought to every pixel cost four times as much to compare, and in a large picture neighbours say the same: a
step on CamVid spent more than a quarter of its time there.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

SMALL = 128  # pixels: a side up to here is compared pixel by pixel


def aligned(logits: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    """Logits (B, K, h', w') and mask (B, H, W) -> both at one resolution."""
    height, width = (
        max(own, min(side, max(SMALL, (side + 1) // 2)))
        for own, side in zip(logits.shape[2:], mask.shape[1:], strict=True)
    )
    if logits.shape[2:] != (height, width):
        logits = F.interpolate(logits, size=(height, width), mode="bilinear", align_corners=False)
    rows, columns = near_centres(height, mask.shape[1]), near_centres(width, mask.shape[2])
    return logits, mask.index_select(1, rows.to(mask.device)).index_select(2, columns.to(mask.device))


def compared_share(compared: Tensor, mask: Tensor) -> float:
    """The share of a mask's pixels (B, H, W) that is compared, (B, h, w): what is counted in the mask times this."""
    return compared.shape[1:].numel() / mask.shape[1:].numel()


def near_centres(cells: int, pixels: int) -> Tensor:
    """For each cell the pixel before its centre or the one after it, in turns: always the same side would shift what
    is learned by half a pixel."""
    number = torch.arange(cells, dtype=torch.float64)
    centre = (number + 0.5) * (pixels / cells) - 0.5
    return torch.where(number % 2 == 0, centre.floor(), centre.ceil()).long().clamp(0, pixels - 1)
