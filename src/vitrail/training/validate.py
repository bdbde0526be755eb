"""Measuring while training: the held-out images, prepared exactly as `predict` will prepare them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from vitrail.data.images import read_image
from vitrail.data.inputs import before_crop, frame_of, normalise, prepare
from vitrail.data.threads import in_threads
from vitrail.data.truths import DenseTruths, maps_of
from vitrail.data.unreadable import UnreadableImage
from vitrail.errors import VitrailError
from vitrail.infer.windows import seen_through_windows
from vitrail.model.precision import autocast
from vitrail.tasks.dense import IGNORE, Dense
from vitrail.training.distributed import Processes
from vitrail.weights.preprocessing import Preprocessing

BATCH = 128  # images, where they are small
PIXELS = BATCH * 128 * 128  # of a batch, where they are large
IN_MEMORY = 1e9  # bytes of prepared pictures that are kept


class Pictures:
    """Held-out images, decoded once where they fit into memory."""

    def __init__(
        self, paths: Sequence[Path], preprocessing: Preprocessing, workers: int, patch: tuple[int, int] = (1, 1)
    ) -> None:
        self.paths, self.preprocessing, self.workers = paths, preprocessing, max(1, workers)
        self.patch = patch  # where windows begin, for pictures that are looked at through some
        bytes_each = preprocessing.size[0] * preprocessing.size[1] * preprocessing.channels
        self.fits = len(paths) * bytes_each <= IN_MEMORY
        self._kept: dict[int, NDArray[np.uint8]] = {}
        self.batch = max(1, min(BATCH, PIXELS // (preprocessing.size[0] * preprocessing.size[1])))

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

    def whole(self, place: int) -> Tensor:
        """Normalised (C, H, W) at its own size."""
        pixels = read_image(self.paths[place], self.preprocessing.channels)
        return normalise(torch.from_numpy(pixels)[None], self.preprocessing)[0]

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
def compared(
    model: nn.Module,
    task: Dense,
    pictures: Pictures,
    truths: DenseTruths,
    places: Sequence[int],
    processes: Processes,
) -> tuple[Tensor, float]:
    """What is kept of each image's answer, compared with its truth in the picture's own pixels, (len(places), S), and
    the mean loss; each process runs its part."""
    shares = np.array_split(np.asarray(places), processes.world)
    mine = shares[processes.rank].tolist()
    was_training = model.training
    model.eval()
    rows: list[Tensor] = []
    losses: list[Tensor] = []
    size = pictures.batch
    for start in range(0, len(shares[0]), size):  # of the longest share: every process must run equally often
        here = mine[start : start + size]
        kept, loss = _compared(model, task, pictures, truths, here or [int(places[0])], processes)
        rows += kept[: len(here)]
        losses += [loss] * len(here)
    model.train(was_training)
    found = processes.gather(torch.stack(rows).double().to(processes.device)).cpu()
    return found, float(processes.gather(torch.stack(losses).to(processes.device)).mean())


def _compared(
    model: nn.Module, task: Dense, pictures: Pictures, truths: DenseTruths, places: list[int], processes: Processes
) -> tuple[list[Tensor], Tensor]:
    if pictures.preprocessing.resize == "window":
        return _through_windows(model, task, pictures, truths, places, processes)
    frames = [frame_of(truths.size(place), pictures.preprocessing) for place in places]
    with autocast(processes.device):
        outputs = model(pictures.take(places).to(processes.device)).float()
    taken = truths.take(np.asarray(places))
    targets = truths.moved(taken, maps_of(frames), pictures.preprocessing.size).to(processes.device)
    loss = task.loss(outputs, targets)
    decoded = task.decode(outputs.cpu(), frames)
    return [task.compare(one, truths.own(place)) for one, place in zip(decoded, places, strict=True)], loss


def _through_windows(
    model: nn.Module, task: Dense, pictures: Pictures, truths: DenseTruths, places: list[int], processes: Processes
) -> tuple[list[Tensor], Tensor]:
    """Pictures of any size at their own scale; a loss for each is its own."""

    def forward(images: Tensor) -> Tensor:
        with autocast(processes.device):
            return model(images.to(processes.device)).float().cpu()

    rows, losses = [], []
    for place in places:
        how, truth = pictures.preprocessing, truths.own(place)
        outputs, frame = seen_through_windows(forward, pictures.whole(place), how.size, pictures.patch, pictures.batch)
        target = torch.full(frame.input, IGNORE)
        target[: truth.shape[0], : truth.shape[1]] = truth.long()
        losses.append(task.loss(outputs[None], target[None]))
        rows.append(task.compare(task.decode(outputs[None], [frame])[0], truth))
    return rows, torch.stack(losses).mean()


@torch.no_grad()
def outputs_of(model: nn.Module, pictures: Pictures, places: Sequence[int], processes: Processes) -> Tensor:
    """(len(places), outputs) in float32 on the CPU; each process runs its part."""
    shares = np.array_split(np.asarray(places), processes.world)
    mine = shares[processes.rank].tolist()
    was_training = model.training
    model.eval()
    found: list[Tensor] = []
    for start in range(0, len(shares[0]), pictures.batch):  # of the longest share: all must run equally often
        here = mine[start : start + pictures.batch]
        images = pictures.take(here or [int(places[0])]).to(processes.device)
        with autocast(processes.device):
            outputs = model(images).float().cpu()
        found.append(outputs if here else outputs[:0])
    model.train(was_training)
    return processes.gather(torch.cat(found))
