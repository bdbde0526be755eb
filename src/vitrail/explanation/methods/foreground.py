"""Objects without labels: DINO's masks from [CLS] attention, and the foreground by principal components."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from vitrail.errors import VitrailError

SHARE = 0.6  # of the mass, as in the figures of DINO


def mass_masks(maps: Tensor, share: float = SHARE) -> Tensor:
    """(..., h, w) -> bool (..., h, w): the fewest patches that hold this share of each map's mass."""
    if not 0 < share <= 1:
        raise VitrailError(f"share is {share}; it is above 0 and at most 1")
    flat = maps.flatten(-2).double()
    values, order = flat.sort(dim=-1, descending=True, stable=True)
    whole = values.sum(dim=-1, keepdim=True)
    before = values.cumsum(dim=-1) - values
    keep = before < (share - 1e-7) * whole  # 0.5 of a mass in float32 is not always half of it
    return torch.zeros_like(keep).scatter(-1, order, keep).unflatten(-1, maps.shape[-2:])


class Foreground(NamedTuple):
    mask: Tensor  # bool (B, h, w)
    components: Tensor  # (B, h, w, 3): the first three, each from 0 to 1, to be shown as colours


def foreground(tokens: Tensor, grid: tuple[int, int]) -> Foreground:
    """Of each image by itself, from its patch tokens (B, N, D): the side of the first component that avoids the border.

    A component has no sign of its own, and which side is the object is a guess: pictures have their subject inside.
    """
    scores = torch.stack([principal_components(image) for image in tokens.float()]).unflatten(1, grid)  # (B, h, w, 3)
    first = scores[..., 0]
    inner, outer = first > 0, _border(grid).to(tokens.device)
    share = [(side & outer).flatten(1).sum(1) / side.flatten(1).sum(1).clamp(min=1) for side in (inner, ~inner)]
    mask = torch.where((share[0] <= share[1])[:, None, None], inner, ~inner)
    low, high = scores.amin((1, 2), keepdim=True), scores.amax((1, 2), keepdim=True)
    return Foreground(mask, (scores - low) / (high - low).clamp(min=1e-12))


def principal_components(x: Tensor, count: int = 3) -> Tensor:
    """(N, D) -> (N, count): coordinates on the axes along which the tokens differ most; zeros where there are fewer."""
    centred = x - x.mean(0)
    u, s, _ = torch.linalg.svd(centred, full_matrices=False)
    scores = (u * s)[:, :count]
    largest = scores.gather(0, scores.abs().argmax(0, keepdim=True))
    scores = scores * torch.where(largest < 0, -1.0, 1.0)  # the same sign on every machine
    return torch.nn.functional.pad(scores, (0, count - scores.shape[1]))


def _border(grid: tuple[int, int]) -> Tensor:
    border = torch.ones(grid, dtype=torch.bool)
    border[1:-1, 1:-1] = False
    return border
