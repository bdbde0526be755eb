"""A value for every pixel of an image, in a file or made from one: what masks and depth maps have in common."""

from __future__ import annotations

import abc
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from vitrail.dataset import StructuredTarget


class PixelMap(StructuredTarget, abc.ABC):
    """Two maps are the same where they mean the same, wherever they lie: `mark` is made from the content. `str()` goes
    into a run's fingerprint, so it names all that decides what `read` gives."""

    __slots__ = ()

    mark: str
    path: Path  # the file that a complaint names
    size: tuple[int, int]  # height and width, those of the upright picture

    @abc.abstractmethod
    def read(self) -> NDArray[Any]:
        """(H, W) of the upright picture. Raises UnreadableImage where there is no map."""
