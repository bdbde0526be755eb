"""From any source to the model's input: read and resized one by one in threads, normalised as a batch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from vitrail.data.loading.transforms import letterbox_of, normalise, prepare
from vitrail.inference.read_source import Source, read_picture, read_source
from vitrail.tasks.letterbox import Letterbox
from vitrail.weights.preprocessing import Preprocessing

if TYPE_CHECKING:  # the server's decoding processes do without torch
    import torch
    from torch import Tensor

Pixels: TypeAlias = NDArray[np.uint8]


class ModelInput(NamedTuple):
    """One image, prepared for the model."""

    pixels: Pixels  # (h, w, C), at the model's size
    letterbox: Letterbox | None = None  # for a dense task: where the picture lies in the pixels
    whole: Pixels | None = None  # (H, W, C), the picture at its own size, where it goes through sliding windows


class ImageProcessor:
    """How a model's images are prepared. dense: its answers are about places in the picture."""

    def __init__(self, preprocessing: Preprocessing, dense: bool = False) -> None:
        self.preprocessing, self.dense = preprocessing, dense
        self.windows = dense and preprocessing.resize == "window"

    def read(self, source: Source, name: str = "the image") -> ModelInput:
        """The pixels that the model takes, or UnreadableImage, in which `name` stands for a source without a path."""
        if not self.dense:
            return ModelInput(read_source(source, self.preprocessing, name))
        picture = read_picture(source, self.preprocessing.channels, name)  # at its own size, which the answer is about
        letterbox = letterbox_of((picture.shape[0], picture.shape[1]), self.preprocessing)
        return ModelInput(prepare(picture, self.preprocessing), letterbox, picture if self.windows else None)

    def transform(self, images: Sequence[Pixels], device: torch.device | str = "cpu") -> Tensor:
        """uint8 (h, w, C) each, of one size -> normalised float32 (B, C, h, w) on the device."""
        import torch

        return normalise(torch.from_numpy(np.stack(images)).to(device), self.preprocessing)
