"""What is to be learnt from each picture, moved with it: whatever augmentation does to the pixels it does to the truth.

Labels and numbers stay as they are. Masks are sampled by the very map that samples the picture; boxes go through its
inverse. `maps` (B, 3, 3) lead from the result's coordinates in [-1, 1] to the picture's (see augment.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from vitrail.data.boxes import Boxes
from vitrail.data.collection import Item
from vitrail.data.masks import Mask
from vitrail.data.threads import in_threads
from vitrail.data.unreadable import UnreadableImage
from vitrail.tasks.dense import IGNORE
from vitrail.tasks.frame import Frame

VISIBLE = 0.25  # part of a box that must be left in the picture, else its object is no longer to be found
NARROW = 1.0  # pixels that a box must have of each side


class Truths(Protocol):
    """The truth about pictures, by their places in a list."""

    def take(self, places: NDArray[np.int64]) -> Any:
        """What is known of some of them, as they are stored."""
        ...

    def moved(self, taken: Any, maps: Tensor, size: tuple[int, int]) -> Tensor:
        """The targets of the moved pictures, which have this size now."""
        ...


class OwnTruths(Protocol):
    """The truth about places in pictures, in their own pixels."""

    def own(self, place: int) -> Tensor:
        """A mask uint8 (H, W), or boxes (m, 6): class, left, top, right, bottom, crowd."""
        ...


class DenseTruths(Truths, OwnTruths, Protocol):
    """The truth about places, and all that training needs of it."""

    def size(self, place: int) -> tuple[int, int]:
        """The picture's own height and width."""
        ...

    def look(self) -> dict[int, UnreadableImage]:
        """Read everything once: the places of which nothing can be known."""
        ...


class Plain:
    """Of a whole picture: the same whatever is done to it."""

    def __init__(self, targets: Tensor) -> None:
        self.targets = targets

    def take(self, places: NDArray[np.int64]) -> Tensor:
        return self.targets[torch.from_numpy(places)]

    def moved(self, taken: Tensor, maps: Tensor, size: tuple[int, int]) -> Tensor:
        return taken


class MaskTruths:
    """A class for every pixel. Masks lie in the store's shape, as the pictures do."""

    def __init__(self, masks: Sequence[Mask], shape: tuple[int, int], gigabytes: float = 4.0, workers: int = 2) -> None:
        self.masks, self.shape, self.workers = masks, shape, max(1, workers)
        self.keeps = len(masks) * shape[0] * shape[1] <= gigabytes * 1e9
        self._kept: dict[int, NDArray[np.uint8]] = {}

    def take(self, places: NDArray[np.int64]) -> Tensor:
        return torch.from_numpy(np.stack(in_threads(self._squashed, places.tolist(), self.workers)))  # (B, h, w)

    def moved(self, taken: Tensor, maps: Tensor, size: tuple[int, int]) -> Tensor:
        """int64 (B, H, W); what lies beyond the picture's edges is not known."""
        grid = F.affine_grid(maps[:, :2], [len(taken), 1, *size], align_corners=False)
        known = taken[:, None].float() - IGNORE  # 0 beyond the edges is then IGNORE
        return (F.grid_sample(known, grid, mode="nearest", align_corners=False)[:, 0] + IGNORE).long()

    def own(self, place: int) -> Tensor:
        return torch.from_numpy(self.masks[place].read())

    def size(self, place: int) -> tuple[int, int]:
        return self.masks[place].size

    def look(self) -> dict[int, UnreadableImage]:
        broken: dict[int, UnreadableImage] = {}

        def tried(place: int) -> None:
            try:
                self._squashed(place)
            except UnreadableImage as error:
                broken[place] = error

        in_threads(tried, range(len(self.masks)), self.workers)
        return dict(sorted(broken.items()))

    def _squashed(self, place: int) -> NDArray[np.uint8]:
        if place in self._kept:
            return self._kept[place]
        small = np.array(Image.fromarray(self.masks[place].read()).resize(self.shape[::-1], Image.Resampling.NEAREST))
        if self.keeps:
            self._kept[place] = small
        return small


class BoxTruths:
    """Objects with their boxes. Crowds are no objects: they are neither learnt nor counted."""

    def __init__(self, boxes: Sequence[Boxes]) -> None:
        self.boxes = boxes

    def take(self, places: NDArray[np.int64]) -> list[Boxes]:
        return [self.boxes[place] for place in places]

    def moved(self, taken: Sequence[Boxes], maps: Tensor, size: tuple[int, int]) -> Tensor:
        """(B, M, 5): class, centre x and y, width and height in 0..1; class -1 fills up."""
        back = torch.linalg.inv(maps.double())
        found = [_moved(boxes, way, size) for boxes, way in zip(taken, back, strict=True)]
        padded = torch.full((len(found), max((len(one) for one in found), default=0), 5), -1.0)
        for row, one in zip(padded, found, strict=True):
            row[: len(one)] = one
        return padded

    def own(self, place: int) -> Tensor:
        boxes = self.boxes[place]
        rows = [(c, *box, x) for c, box, x in zip(boxes.classes, boxes.corners, boxes.crowd, strict=True)]
        return torch.tensor(rows, dtype=torch.float32).reshape(-1, 6)

    def size(self, place: int) -> tuple[int, int]:
        return self.boxes[place].size

    def look(self) -> dict[int, UnreadableImage]:
        return {}


def _moved(boxes: Boxes, way: Tensor, size: tuple[int, int]) -> Tensor:
    """(m, 5) of the boxes that are still to be seen. `way` leads from the picture to the result."""
    learnt = [place for place, crowd in enumerate(boxes.crowd) if not crowd]
    if not learnt:
        return torch.zeros(0, 5)
    height, width = boxes.size
    corners = torch.tensor([boxes.corners[place] for place in learnt], dtype=torch.float64)
    corners = corners / torch.tensor([width, height, width, height]) * 2 - 1  # (m, 4) in [-1, 1]
    left, top, right, bottom = corners.unbind(1)
    four = torch.stack([torch.stack([x, y, torch.ones_like(x)]) for x in (left, right) for y in (top, bottom)])
    x, y, _ = (way @ four.permute(1, 0, 2).flatten(1)).reshape(3, 4, -1)  # where the four corners went
    hull = torch.stack([x.amin(0), y.amin(0), x.amax(0), y.amax(0)], dim=1)
    seen = hull.clamp(-1, 1)
    sides, whole = (seen[:, 2:] - seen[:, :2]) / 2, (hull[:, 2:] - hull[:, :2]) / 2
    pixels = torch.tensor([size[1], size[0]]) * sides
    kept = (sides.prod(1) >= VISIBLE * whole.prod(1)) & (pixels >= NARROW).all(1)
    centres = (seen[:, :2] + seen[:, 2:]) / 4 + 0.5
    classes = torch.tensor([boxes.classes[place] for place in learnt])[:, None]
    return torch.cat([classes, centres, sides], dim=1)[kept].float()


class Some(Sequence[Tensor]):
    """The truth of chosen places, or of the first `most` of so many, read when it is asked for."""

    def __init__(self, truths: OwnTruths, places: Sequence[int] | int, most: int | None = None) -> None:
        self.truths = truths
        self.places = list(range(places) if isinstance(places, int) else places)[:most]

    def __len__(self) -> int:
        return len(self.places)

    def __getitem__(self, number: Any) -> Any:
        return self.truths.own(self.places[number])


def maps_of(frames: Sequence[Frame]) -> Tensor:
    """(B, 3, 3) from the model's input to the picture that stands in it, as augmentation's maps do."""
    maps = torch.zeros(len(frames), 3, 3)
    for one, frame in zip(maps, frames, strict=True):
        top, left, bottom, right = frame.inside
        height, width = frame.input
        one[0] = torch.tensor([width / (right - left), 0, (width - left - right) / (right - left)])
        one[1] = torch.tensor([0, height / (bottom - top), (height - top - bottom) / (bottom - top)])
        one[2, 2] = 1
    return maps


def dense_truths(items: Sequence[Item], shape: tuple[int, int], gigabytes: float, workers: int) -> DenseTruths:
    """The truth about these items, which are all of one kind."""
    if items and isinstance(items[0].target, Mask):
        return MaskTruths([item.target for item in items if isinstance(item.target, Mask)], shape, gigabytes, workers)
    return BoxTruths([item.target for item in items if isinstance(item.target, Boxes)])
