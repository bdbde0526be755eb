"""Measuring while training: the held-out images, prepared exactly as `predict` will prepare them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from vitrail.data.images import read_image
from vitrail.data.inputs import before_crop, normalise, prepare
from vitrail.data.threads import in_threads
from vitrail.data.unreadable import UnreadableImage
from vitrail.errors import VitrailError
from vitrail.model.precision import autocast
from vitrail.training.distributed import Processes
from vitrail.weights.preprocessing import Preprocessing

BATCH = 128
IN_MEMORY = 1e9  # bytes of prepared pictures that are kept


class Pictures:
    """Held-out images, decoded once where they fit into memory."""

    def __init__(self, paths: Sequence[Path], preprocessing: Preprocessing, workers: int) -> None:
        self.paths, self.preprocessing, self.workers = paths, preprocessing, max(1, workers)
        bytes_each = preprocessing.size[0] * preprocessing.size[1] * preprocessing.channels
        self.fits = len(paths) * bytes_each <= IN_MEMORY
        self._kept: dict[int, NDArray[np.uint8]] = {}

    def __len__(self) -> int:
        return len(self.paths)

    def take(self, places: Sequence[int]) -> Tensor:
        """Normalised (B, C, H, W)."""
        missing = [place for place in places if place not in self._kept]
        read = dict(zip(missing, in_threads(self._read, missing, self.workers), strict=True))
        if self.fits:
            self._kept |= read
        pixels = [self._kept[place] if place in self._kept else read[place] for place in places]
        return normalise(torch.from_numpy(np.stack(pixels)), self.preprocessing)

    def look(self) -> dict[int, UnreadableImage]:
        """Decode everything once, keeping what fits: what is broken is known before a long run begins."""
        broken: dict[int, UnreadableImage] = {}

        def tried(place: int) -> None:
            try:
                pixels = self._prepared(place)
            except UnreadableImage as error:
                broken[place] = error
            else:
                if self.fits:
                    self._kept[place] = pixels

        in_threads(tried, range(len(self.paths)), self.workers)
        return dict(sorted(broken.items()))

    def _prepared(self, place: int) -> NDArray[np.uint8]:
        how = self.preprocessing
        return prepare(read_image(self.paths[place], how.channels, target=before_crop(how)), how)

    def _read(self, place: int) -> NDArray[np.uint8]:
        try:
            return self._prepared(place)
        except UnreadableImage as error:
            raise VitrailError(f"{error}: it was readable when the run began; mend it or take it out") from None


@torch.no_grad()
def outputs_of(model: nn.Module, pictures: Pictures, places: Sequence[int], processes: Processes) -> Tensor:
    """(len(places), outputs) in float32 on the CPU; each process runs its part."""
    shares = np.array_split(np.asarray(places), processes.world)
    mine = shares[processes.rank].tolist()
    was_training = model.training
    model.eval()
    found: list[Tensor] = []
    for start in range(0, len(shares[0]), BATCH):  # of the longest share: every process must run equally often
        here = mine[start : start + BATCH]
        images = pictures.take(here or [int(places[0])]).to(processes.device)
        with autocast(processes.device):
            outputs = model(images).float().cpu()
        found.append(outputs if here else outputs[:0])
    model.train(was_training)
    return processes.gather(torch.cat(found))
