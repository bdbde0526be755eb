"""Targets under augmentation: a crop, flip or shift of the image does the same to its mask, depth map or boxes.

Labels and numbers of whole images stay as they are. Masks are sampled with the affine map that samples the image;
boxes go through its inverse. `maps` (B, 3, 3) lead from the output's coordinates in [-1, 1] to the image's.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vitrail.images.unreadable import UnreadableImage
from vitrail.tasks.letterbox import Letterbox


class Targets(Protocol):
    """The targets of images, by their index in a list."""

    def take(self, indices: NDArray[np.int64]) -> Any:
        """The stored targets at these indices."""
        ...

    def moved(self, taken: Any, maps: Tensor, size: tuple[int, int]) -> Tensor:
        """The taken targets after augmentation by `maps`. size: height and width of the augmented images."""
        ...


class OwnTargets(Protocol):
    """Targets of dense tasks, in the images' own pixels."""

    def own(self, index: int) -> Tensor:
        """A map (H, W), or boxes (m, 6): class, left, top, right, bottom, crowd."""
        ...


class DenseTargets(Targets, OwnTargets, Protocol):
    """What training needs of the targets of a dense task."""

    def size(self, index: int) -> tuple[int, int]:
        """The picture's own height and width."""
        ...

    def scan(self, statistics: Callable[[Tensor], Any]) -> TargetScan:
        """Read every target once: which are broken, and what `statistics` makes of each of the others."""
        ...


class TargetScan(NamedTuple):
    """The result of reading every target once, by index."""

    broken: dict[int, UnreadableImage]
    statistics: dict[int, Any]  # of the targets that are not broken


class TargetSubset:
    """Targets without some of them; the others are renumbered from 0."""

    def __init__(self, targets: DenseTargets, count: int, without: Collection[int]) -> None:
        self.targets = targets
        self.indices = np.array([index for index in range(count) if index not in without], dtype=np.int64)

    def take(self, indices: NDArray[np.int64]) -> Any:
        return self.targets.take(self.indices[indices])

    def moved(self, taken: Any, maps: Tensor, size: tuple[int, int]) -> Tensor:
        return self.targets.moved(taken, maps, size)

    def own(self, index: int) -> Tensor:
        return self.targets.own(int(self.indices[index]))

    def size(self, index: int) -> tuple[int, int]:
        return self.targets.size(int(self.indices[index]))

    def scan(self, statistics: Callable[[Tensor], Any]) -> TargetScan:
        whole = self.targets.scan(statistics)
        rows = {place: whole.statistics.get(int(index)) for place, index in enumerate(self.indices)}
        return TargetScan({}, rows)


class WholeImageTargets:
    """Targets of whole images, (N,) or (N, K): augmentation does not change them."""

    def __init__(self, targets: Tensor) -> None:
        self.targets = targets

    def take(self, indices: NDArray[np.int64]) -> Tensor:
        return self.targets[torch.from_numpy(indices)]

    def moved(self, taken: Tensor, maps: Tensor, size: tuple[int, int]) -> Tensor:
        return taken


class LazyTargets(Sequence[Tensor]):
    """A list of targets in the images' own pixels, each of which is read only when it is used.

    indices: which targets, or how many of them from 0 on; most: not more than the first so many.
    """

    def __init__(self, targets: OwnTargets, indices: Sequence[int] | int, most: int | None = None) -> None:
        self.targets = targets
        self.indices = list(range(indices) if isinstance(indices, int) else indices)[:most]

    def __len__(self) -> int:
        return len(self.indices)

    def __getitem__(self, number: Any) -> Any:
        return self.targets.own(self.indices[number])


def maps_of(frames: Sequence[Letterbox]) -> Tensor:
    """(B, 3, 3) affine maps from the model's input to the image that was letterboxed into it, as `moved` takes them."""
    maps = torch.zeros(len(frames), 3, 3)
    for one, frame in zip(maps, frames, strict=True):
        top, left, bottom, right = frame.inside
        height, width = frame.input
        one[0] = torch.tensor([width / (right - left), 0, (width - left - right) / (right - left)])
        one[1] = torch.tensor([0, height / (bottom - top), (height - top - bottom) / (bottom - top)])
        one[2, 2] = 1
    return maps
