"""From the bytes of an upload to the pixels that the model takes. What a decoding process runs."""

from __future__ import annotations

import functools
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vitrail.inference.image_processor import ImageProcessor
from vitrail.serving.decoding.image_limits import check_image_header, check_windows
from vitrail.tasks.letterbox import Letterbox
from vitrail.weights.preprocessing import Preprocessing


@dataclass(frozen=True)
class Picture:
    """One decoded image."""

    pixels: NDArray[np.uint8]  # (h, w, C), what the model sees
    size: tuple[int, int]  # (height, width) of the original, upright
    letterbox: Letterbox | None = None  # for a dense task: where the original lies in `pixels`
    whole: NDArray[np.uint8] | None = None  # (H, W, C), the original, where it goes through sliding windows


@dataclass(frozen=True)
class PictureReader:
    """How uploads are read for one model. dense: its answers are about places in the picture."""

    preprocessing: Preprocessing
    dense: bool
    patch: tuple[int, int]
    max_pixels: int
    fast_decode: bool = False  # large JPEGs at reduced scale

    @functools.cached_property
    def processor(self) -> ImageProcessor:
        return ImageProcessor(self.preprocessing, self.dense, self.fast_decode)

    def read(self, data: bytes, name: str) -> Picture:
        """Decoded to the model's size, after its header was looked at; or UnreadableImage."""
        size = check_image_header(data, self.preprocessing, self.max_pixels, name)
        if self.processor.windows:
            check_windows(size, self.preprocessing, self.patch, name)
        image = self.processor.read(data, name)
        return Picture(image.pixels, size, image.letterbox, image.whole)

    @property
    def max_bytes(self) -> int:
        """Of the arrays of a picture."""
        height, width = self.preprocessing.size
        whole = self.max_pixels if self.processor.windows else 0
        return (height * width + whole) * self.preprocessing.channels

    def to_dict(self) -> dict[str, Any]:
        return {**asdict(self), "preprocessing": self.preprocessing.to_dict()}

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> PictureReader:
        """What `to_dict` gave, also after JSON made lists of tuples."""
        preprocessing = Preprocessing.from_dict(values["preprocessing"])
        height, width = values["patch"]
        return cls(preprocessing, values["dense"], (height, width), values["max_pixels"], values["fast_decode"])
