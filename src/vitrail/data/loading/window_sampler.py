"""Which images a step sees of a manifest whose images are too many to be drawn from all at once.

The order of an epoch is made of windows. The shards are shuffled; so many of them that they have half a million images
are a window; the images of a window are shuffled. It is a function of (seed, epoch) and of the numbers below, so a run
goes on at any step with the window that the step lies in, and no other is looked at. A set that fits into one window is
shuffled as a whole.

A Parquet file is read by row groups. Those of a window are shuffled, and images only among the few groups that make up
a pool, so that a group is read once an epoch.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from vitrail.data.loading.rng import permutation, uniform
from vitrail.data.loading.sampler import BatchIndices, Sampler

WINDOW = 500_000  # images
POOL = 1000  # images that are drawn from at once where they lie in row groups


class _Windows(NamedTuple):
    """The windows of an epoch."""

    epoch: int
    shards: NDArray[np.int64]  # (S,) in the order of the epoch
    window: NDArray[np.int64]  # (S,) that each of them belongs to, from 0 on
    ends: NDArray[np.int64]  # (W,) images of each window and of those before it


class WindowSampler(Sampler):
    """Draws whole batches, as `Sampler` does.

    bounds: (S + 1,) where each shard begins among the images, and the number of all. together: (N,) whether an image
    lies in the row group of the one before it, in the same shard.
    """

    def __init__(self, bounds: NDArray[np.int64], together: NDArray[np.bool_], batch_size: int, seed: int) -> None:
        super().__init__(int(bounds[-1]), batch_size, seed)
        self.bounds, self.together = bounds, together
        self._windows: _Windows | None = None
        self._order: tuple[int, int, NDArray[np.int64]] | None = None  # epoch, window, its images in order

    def of_step(self, step: int) -> BatchIndices:
        """The images of one step, counted from 0 over the whole run, and the seeds of their augmentation."""
        epoch, place = divmod(step, self.steps_per_epoch)
        first, last = place * self.batch_size, (place + 1) * self.batch_size
        windows, parts = self._windows_of(epoch), []
        while first < last:
            window = int(np.searchsorted(windows.ends, first, side="right"))
            begin, end = int(windows.ends[window - 1]) if window else 0, min(last, int(windows.ends[window]))
            parts.append(self._order_of(windows, window)[first - begin : end - begin])
            first = end
        indices = np.concatenate(parts)
        return BatchIndices(epoch, indices, indices)

    def _windows_of(self, epoch: int) -> _Windows:
        if self._windows is None or self._windows.epoch != epoch:
            sizes = np.diff(self.bounds)
            shards = permutation(self.seed, epoch, len(sizes))
            shards = shards[sizes[shards] > 0]
            ends = np.cumsum(sizes[shards])
            number = (ends - sizes[shards]) // WINDOW  # by where it begins; a large shard may skip a number
            _, window = np.unique(number, return_inverse=True)
            last = np.flatnonzero(np.diff(window, append=window[-1] + 1))
            self._windows = _Windows(epoch, shards, window, ends[last])
        return self._windows

    def _order_of(self, windows: _Windows, window: int) -> NDArray[np.int64]:
        if self._order is None or self._order[:2] != (windows.epoch, window):
            self._order = (windows.epoch, window, self._shuffled(windows, window))
        return self._order[2]

    def _shuffled(self, windows: _Windows, window: int) -> NDArray[np.int64]:
        """The images of a window in their order: its groups shuffled, then the images of each pool."""
        shards = np.sort(windows.shards[windows.window == window])
        indices = np.concatenate([np.arange(self.bounds[one], self.bounds[one + 1]) for one in shards])
        begins = ~self.together[indices]
        group = np.cumsum(begins) - 1
        rank = uniform(self.seed, windows.epoch, indices[begins], 1, "groups")[:, 0]
        indices = indices[np.argsort(rank[group], kind="stable")]
        places = uniform(self.seed, windows.epoch, indices, 1, "places")[:, 0]
        return indices[np.lexsort((places, np.arange(len(indices)) // POOL))]
