"""Images of a manifest as items of a dataset: few at once, or millions as numbers that are looked up in its shards."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vitrail.data.loading.window_sampler import POOL, WINDOW, WindowSampler
from vitrail.data.manifest.manifest_file import Manifest
from vitrail.data.manifest.manifest_row import FileImage, ManifestRow
from vitrail.data.manifest.parquet_cells import keep_row_groups
from vitrail.dataset import Item, ManyItems
from vitrail.storage import is_url


def item_of(row: ManifestRow, root: str, target: int, split: str | None = None) -> Item:
    """A local file is the item that its folder would give; what else there is keeps its address."""
    image = row.image(root)
    if isinstance(image, FileImage) and not is_url(image.path):
        return Item(Path(image.path), target, split)
    return Item(Path(row.name), target, split, stored=image)


class ManifestItems(ManyItems):
    """Some images of a manifest, by 9 bytes each. Where one lies is read in its shard; as many shards are kept as two
    windows of the sampler have.

    numbers: (N,) uint32, which images of the manifest these are, in its order. targets: (N,) int32, their classes.
    together: (N,) whether an image lies in the row group of the one before it.
    """

    def __init__(
        self,
        manifest: Manifest,
        numbers: NDArray[np.uint32],
        targets: NDArray[np.int32],
        together: NDArray[np.bool_],
        split: str | None = None,
    ) -> None:
        self.manifest, self.numbers, self.targets, self.together = manifest, numbers, targets, together
        self.split = split
        self._tables: OrderedDict[int, Any] = OrderedDict()
        self._lock = threading.Lock()

    def __reduce__(self) -> tuple[Any, ...]:
        """For other processes, which read shards of their own."""
        return type(self), (self.manifest, self.numbers, self.targets, self.together, self.split)

    def at(self, index: int) -> Item:
        shard, place = divmod(int(self.numbers[index]), self.manifest.shard_size)
        row = self.manifest.row_of(self.manifest.shards[shard], self._table(shard), place)
        return item_of(row, self.manifest.root, int(self.targets[index]), self.split)

    def class_counts(self) -> Mapping[int, int]:
        return dict(enumerate(np.bincount(self.targets).tolist()))

    def sampler(self, batch_size: int, seed: int) -> WindowSampler:
        """Draws their batches."""
        if self.together.any():
            keep_row_groups(2 * POOL)
        shards = np.arange(len(self.manifest.shards) + 1) * self.manifest.shard_size
        return WindowSampler(np.searchsorted(self.numbers, shards), self.together, batch_size, seed)

    def _table(self, shard: int) -> Any:
        with self._lock:
            if shard not in self._tables:
                while len(self._tables) * self.manifest.shard_size > 2 * WINDOW:
                    self._tables.popitem(last=False)
                self._tables[shard] = self.manifest.table(self.manifest.shards[shard])
            self._tables.move_to_end(shard)
            return self._tables[shard]
