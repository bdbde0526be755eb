"""Whether the pictures of a class are taken alike: from one side and at one place, as catalogues, scans and X-rays are.

Of such pictures a mirrored one never comes, or means something else, and a narrow crop shows what no picture will. What
tells them is the difference between a picture and its mirror image: where pictures are taken as they come, these
differences have nothing in common.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from vitrail.data.loading.cache import ImageCache
from vitrail.data.loading.sampler import evenly_spaced

PICTURES = 1000
EACH = 10  # of a class; where there are fewer, all pictures are compared with each other
COARSE = 16  # pixels a side, at most: about the same place is the same place
IN_COMMON = 0.1  # of the differences: Fashion-MNIST 0.50, digits 0.37; blood cells 0.06, flowers and CIFAR-10 0.00
CERTAIN = 5.0  # standard deviations from what chance gives


def taken_from_one_side(cache: ImageCache, groups: Sequence[Hashable]) -> bool:
    """`groups`: the class of each picture in the cache, or the same for all."""
    indices = evenly_spaced(len(groups), PICTURES)
    parts = [indices[start : start + 50] for start in range(0, len(indices), 50)]
    differences = torch.cat([mirror_differences(cache.take(part)[0]) for part in parts])
    chosen = [groups[index] for index in indices]
    enough = len(chosen) >= EACH * len(set(chosen))
    return have_much_in_common(differences, chosen if enough else [None] * len(chosen))


def mirror_differences(pixels: Tensor) -> Tensor:
    """uint8 (B, H, W, C) -> (B, n): each picture, grey and coarse, less its mirror image."""
    grey = pixels.float().mean(dim=3) / 255
    height, width = grey.shape[1:]
    coarse = F.adaptive_avg_pool2d(grey, (min(COARSE, height), min(COARSE, width)))
    return (coarse - coarse.flip(2)).flatten(1)


def have_much_in_common(differences: Tensor, groups: Sequence[Hashable]) -> bool:
    """Whether two of a group point the same way: by how much, and how surely, since signs could be chance."""
    of_group: dict[Hashable, list[int]] = {}
    for index, group in enumerate(groups):
        of_group.setdefault(group, []).append(index)
    common = variance = whole = 0.0
    for members in of_group.values():
        mine = differences[np.array(members)].double()
        pairs = (mine @ mine.T).fill_diagonal_(0)
        others = max(1, len(members) - 1)
        common += pairs.sum().item() / others
        variance += 2 * pairs.square().sum().item() / others**2
        whole += mine.square().sum().item()
    return common > IN_COMMON * whole and common > CERTAIN * variance**0.5
