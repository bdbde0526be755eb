"""Occlusion (Zeiler and Fergus, 2014): hide a part of the picture, run the model, see how far the answer falls.

Slow, and the plainest of all explanations: it looks at nothing but the answers, so it is the check on the others.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from vitrail.explanation.forward_pass import evaluation_mode
from vitrail.explanation.target_score import TargetScore, blank, explained_outputs
from vitrail.model.encoder import Encoder
from vitrail.model.positions import Grid

WINDOWS = 5  # about so many fit side by side: smaller ones hide too little for the answer to move
BATCH = 32  # pictures at a time


def occlusion(
    model: Encoder,
    images: Tensor,
    target: TargetScore,
    *,
    window: int | None = None,
    batch: int = BATCH,
    before_batch: Callable[[], None] = lambda: None,
) -> Tensor:
    """(B, h, w): how far the score falls on average when a window over the patch is hidden; negative where it rises.

    window: its side in patches; None: a fifth of the shorter side. Windows overlap by half.
    before_batch: called before each forward pass; what it raises ends the explanation.
    """
    patch = model.config.patch_size
    grid = images.shape[2] // patch[0], images.shape[3] // patch[1]
    side = window or max(1, round(min(grid) / WINDOWS))
    windows = windows_of(grid, side)  # (W, h, w), True where hidden
    whole_scores = target.score(target.outputs).cpu()  # (B,)
    maps = []
    for index, image in enumerate(images):
        outputs = outputs_hidden(model, image, windows, batch, before_batch)
        falls = whole_scores[index] - target.for_versions(index, len(outputs)).score(outputs).cpu()  # (W,)
        maps.append((falls[:, None, None] * windows).sum(0) / windows.sum(0))
    return torch.stack(maps)


def windows_of(grid: Grid, side: int) -> Tensor:
    """(W, h, w): every place of a window that moves by half its side and reaches all edges."""
    sides = [min(side, length) for length in grid]
    starts = [
        sorted({*range(0, length - side + 1, max(1, side // 2)), length - side})
        for length, side in zip(grid, sides, strict=True)
    ]
    masks = torch.zeros(len(starts[0]) * len(starts[1]), *grid, dtype=torch.bool)
    for index, (top, left) in enumerate((top, left) for top in starts[0] for left in starts[1]):
        masks[index, top : top + sides[0], left : left + sides[1]] = True
    return masks


@torch.no_grad()
def outputs_hidden(
    model: Encoder, image: Tensor, masks: Tensor, batch: int = BATCH, before_batch: Callable[[], None] = lambda: None
) -> Tensor:
    """(W, K): the model's outputs for versions of one image (C, H, W) whose masked patches (W, h, w) are blank."""
    patch = model.config.patch_size
    empty = blank(image[None])
    outputs = []
    with evaluation_mode(model):
        for part in masks.to(image.device).split(batch):
            before_batch()
            pixels = part.repeat_interleave(patch[0], 1).repeat_interleave(patch[1], 2)[:, None]  # (W, 1, H, W)
            outputs.append(explained_outputs(model, torch.where(pixels, empty, image[None])).float())
    return torch.cat(outputs)
