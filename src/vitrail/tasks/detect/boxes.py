"""Boxes on a picture: what detection learns from."""

from __future__ import annotations

from dataclasses import dataclass

from vitrail.dataset import StructuredTarget
from vitrail.images.exif import Corners


@dataclass(frozen=True, slots=True)
class Boxes(StructuredTarget):
    """The objects of one picture, each inside of it and of some area. Coordinates are those of the upright picture."""

    corners: tuple[Corners, ...]
    classes: tuple[int, ...]
    crowd: tuple[bool, ...]  # a heap of objects (COCO), or one too hard to tell (VOC): neither learnt nor counted
    size: tuple[int, int]  # height and width of the upright picture

    def __len__(self) -> int:
        return len(self.corners)

    def classes_present(self) -> tuple[int, ...]:
        """The class of every box that is learnt and counted."""
        return tuple(label for label, crowd in zip(self.classes, self.crowd, strict=True) if not crowd)
