"""A number for every pixel as a target: masks and depth maps, kept at the size of the cached images."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from vitrail.images.unreadable import UnreadableImage
from vitrail.tasks.shared.pixel_maps import PixelMap
from vitrail.tasks.targets import TargetScan
from vitrail.threads import in_threads


class PixelMapTargets:
    """Each map is read once before training (`scan`), and kept small where there is room."""

    unknown: ClassVar[float]  # the number of a pixel of which nothing is known
    target_dtype: ClassVar[torch.dtype]  # of what the loss takes

    def __init__(
        self, maps: Sequence[PixelMap], shape: tuple[int, int], gigabytes: float = 4.0, workers: int = 2
    ) -> None:
        self.maps, self.shape, self.gigabytes, self.workers = maps, shape, gigabytes, max(1, workers)
        self._small: dict[int, NDArray[Any]] = {}

    def take(self, indices: NDArray[np.int64]) -> Tensor:
        """(B, h, w) at the cached size."""
        return torch.from_numpy(np.stack(in_threads(self._resized, indices.tolist(), self.workers)))

    def moved(self, taken: Tensor, maps: Tensor, size: tuple[int, int]) -> Tensor:
        """(B, H, W), sampled to the nearest pixel; beyond the image's edges nothing is known."""
        grid = F.affine_grid(maps[:, :2], [len(taken), 1, *size], align_corners=False)
        shifted = taken[:, None].float() - self.unknown  # 0, what is sampled beyond the edges, is then unknown
        sampled = F.grid_sample(shifted, grid, mode="nearest", align_corners=False)[:, 0]
        return (sampled + self.unknown).to(self.target_dtype)

    def own(self, index: int) -> Tensor:
        """(H, W) in the image's own pixels."""
        return torch.from_numpy(self.maps[index].read())

    def size(self, index: int) -> tuple[int, int]:
        return self.maps[index].size

    def scan(self, statistics: Callable[[Tensor], Any]) -> TargetScan:
        broken: dict[int, UnreadableImage] = {}
        rows: dict[int, Any] = {}

        def read(index: int) -> None:
            try:
                values = self.maps[index].read()
            except UnreadableImage as error:
                broken[index] = error
            else:
                rows[index] = statistics(torch.from_numpy(values))
                self._resize(index, values)

        in_threads(read, range(len(self.maps)), self.workers)
        return TargetScan(dict(sorted(broken.items())), dict(sorted(rows.items())))

    def _resized(self, index: int) -> NDArray[Any]:
        return self._small[index] if index in self._small else self._resize(index, self.maps[index].read())

    def _resize(self, index: int, values: NDArray[Any]) -> NDArray[Any]:
        """The map at the cached size, which is kept where there is room."""
        small = np.array(Image.fromarray(values).resize(self.shape[::-1], Image.Resampling.NEAREST))
        if len(self.maps) * small.nbytes <= self.gigabytes * 1e9:
            self._small[index] = small
        return small
