"""From any source to the model's input: read and resized one by one in threads, normalised as a batch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from vitrail.data.loading.transforms import letterbox_of, normalise, normalise_array, prepare
from vitrail.images.channels import counting_clipped
from vitrail.inference.read_source import Source, read_own_size, read_source
from vitrail.tasks.letterbox import Letterbox
from vitrail.text import counted
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
    clipped: int = 0  # values above the model's bit depth


def clipped_note(images: int, bits: int | None) -> str:
    """A sentence on images whose values go beyond what the model was trained on."""
    have = counted(images, "image has", "images have")
    return f"{have} values above {bits} bits, the depth of the training images: these were clipped"


class ImageProcessor:
    """How a model's images are prepared. dense: its answers are about places in the picture.

    fast_decode: large JPEGs at reduced scale (`read_source`), where the answer is not about places.
    """

    def __init__(self, preprocessing: Preprocessing, dense: bool = False, fast_decode: bool = False) -> None:
        self.preprocessing, self.dense, self.fast_decode = preprocessing, dense, fast_decode
        self.windows = dense and preprocessing.resize == "window"

    def read(self, source: Source, name: str = "the image") -> ModelInput:
        """The pixels that the model takes, or UnreadableImage, in which `name` stands for a source without a path."""
        with counting_clipped() as clipped:
            if not self.dense:
                pixels = read_source(source, self.preprocessing, name, self.fast_decode)
                return ModelInput(pixels, clipped=clipped.values)
            picture = read_own_size(source, self.preprocessing, name)  # which the answer is about
        letterbox = letterbox_of((picture.shape[0], picture.shape[1]), self.preprocessing)
        whole = picture if self.windows else None
        return ModelInput(prepare(picture, self.preprocessing), letterbox, whole, clipped.values)

    def transform(self, images: Sequence[Pixels], device: torch.device | str = "cpu") -> Tensor:
        """uint8 (h, w, C) each, of one size -> normalised float32 (B, C, h, w) on the device."""
        import torch

        return normalise(torch.from_numpy(np.stack(images)).to(device), self.preprocessing)

    def transform_array(self, images: Sequence[Pixels]) -> NDArray[np.float32]:
        """The same without torch, on the CPU: normalised float32 (B, C, h, w)."""
        return normalise_array(np.stack(images), self.preprocessing)
