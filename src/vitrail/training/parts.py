"""The parts of a run's data: what is known of the images of each, and what the model says about the held-out ones."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import cast

import numpy as np
from torch import Tensor, nn

from vitrail.data.collection import SPLITS, Collection
from vitrail.data.store import Shape
from vitrail.data.truths import DenseTruths, Plain, Some, Truths, dense_truths
from vitrail.data.unreadable import UnreadableImage
from vitrail.tasks.dense import Dense
from vitrail.tasks.task import Task
from vitrail.training.distributed import Processes
from vitrail.training.settings import Data
from vitrail.training.validate import Pictures, compared, outputs_of
from vitrail.weights.preprocessing import Preprocessing

COUNTED = 500  # training masks from which the frequency of the classes is told
SHARE = 0.25  # of the memory for decoded pictures, for masks


class Parts:
    """Train, val and test. The pictures of val and test are prepared as `predict` will prepare them."""

    def __init__(
        self,
        collection: Collection,
        task: Task,
        how: Data,
        shape: Shape,
        preprocessing: Preprocessing,
        patch: tuple[int, int],
    ) -> None:
        self.collection, self.task = collection, task
        self.truths: dict[str, Truths] = {}
        for part in SPLITS:
            items = collection.part(part)
            if isinstance(task, Dense):
                room = SHARE * how.cache_gigabytes
                dense = dense_truths(items, (shape.height, shape.width), room, how.workers)
                self.truths[part] = cast("Truths", dense)
            else:
                self.truths[part] = Plain(task.encode([item.target for item in items]))
        self.pictures = {
            part: Pictures([item.path for item in collection.part(part)], preprocessing, how.workers, patch)
            for part in ("val", "test")
        }

    def unknown(self, part: str) -> dict[int, UnreadableImage]:
        """The images of a part of which nothing is known, because their masks are broken, by their places."""
        return self.dense(part).look() if isinstance(self.task, Dense) else {}

    def unusable(self, part: str) -> dict[Path, UnreadableImage]:
        """The held-out images that are broken, or of which nothing is known."""
        pictures = self.pictures[part]
        return {pictures.paths[place]: error for place, error in (pictures.look() | self.unknown(part)).items()}

    def fit(self) -> None:
        """What the task learns from masks before training; the other tasks have learnt from the targets."""
        if isinstance(self.task, Dense):
            self.task.fit(Some(self.dense("train"), len(self.collection.part("train")), COUNTED))

    def dense(self, part: str) -> DenseTruths:
        return cast("DenseTruths", self.truths[part])

    def outputs(
        self, network: nn.Module, part: str, processes: Processes, places: Sequence[int] | None = None
    ) -> tuple[Tensor, Tensor, float | None]:
        """What the model says about held-out images, what is true, and the loss, where the metrics do not tell it."""
        pictures, truths = self.pictures[part], self.truths[part]
        chosen = list(range(len(pictures))) if places is None else list(places)
        if isinstance(truths, Plain):
            return outputs_of(network, pictures, chosen, processes), truths.take(np.array(chosen)), None
        assert isinstance(self.task, Dense)
        kept, loss = compared(network, self.task, pictures, self.dense(part), chosen, processes)
        return kept, self.task.encode(Some(self.dense(part), chosen)), loss
