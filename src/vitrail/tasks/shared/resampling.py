"""From logits at the model's resolution to a mask at the picture's own."""

from __future__ import annotations

import torch
from torch import Tensor

from vitrail.tasks.letterbox import Letterbox

CELLS = 1 << 24  # logits worked on at a time: 64 MB, whatever the picture's size


def classes_at(logits: Tensor, frame: Letterbox) -> Tensor:
    """(K, h', w') logits over the input -> uint8 (H, W), the best class at each of the picture's own pixels.

    Bilinear, straight from the cells to the pixels: going through the input's resolution would blur twice, and
    torch's interpolate knows no part of a cell to begin with, which padding asks for.
    """
    logits = logits.detach().float()
    classes, height, width = logits.shape
    top, left, bottom, right = frame.inside
    rows = _places(frame.own[0], top, bottom, frame.input[0], height, logits.device)
    columns = _places(frame.own[1], left, right, frame.input[1], width, logits.device)
    across = _between(logits, columns, 2)  # (K, h', W)
    strip = max(1, CELLS // (classes * frame.own[1]))
    parts = [
        _between(across, tuple(part[begin : begin + strip] for part in rows), 1).argmax(0).to(torch.uint8).cpu()  # type: ignore[arg-type]
        for begin in range(0, frame.own[0], strip)
    ]
    return torch.cat(parts)


def _places(
    pixels: int, begin: int, end: int, size: int, cells: int, device: torch.device
) -> tuple[Tensor, Tensor, Tensor]:
    """For each of the picture's pixels along an axis: the cells before and after its centre, and how far it is between.

    The picture's pixels stand in begin..end of an input of `size` pixels, for which there are so many cells.
    """
    centre = begin + (torch.arange(pixels, device=device, dtype=torch.float64) + 0.5) * (end - begin) / pixels
    place = (centre * cells / size - 0.5).clamp(0, cells - 1)
    before = place.long()
    return before, (before + 1).clamp(max=cells - 1), (place - before).float()


def _between(x: Tensor, places: tuple[Tensor, Tensor, Tensor], axis: int) -> Tensor:
    before, after, share = places
    share = share[:, None] if axis == 1 else share
    return torch.lerp(x.index_select(axis, before), x.index_select(axis, after), share)
