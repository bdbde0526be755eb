"""How an image becomes the model's input: it travels with the weights, and nothing else decides it."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from typing import Any

from vitrail.errors import VitrailError

IMAGENET = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
HALF = ((0.5, 0.5, 0.5), (0.5, 0.5, 0.5))  # Google's ViT, AugReg, SigLIP: pixels in [-1, 1]
CLIP = ((0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711))

MOST_PIXELS = 2**26  # of an image that was resized and is to be cropped: 200 MB in colour

RESIZE = ("crop", "pad", "squash", "window")
INTERPOLATION = ("nearest", "bilinear", "bicubic", "lanczos")
CROP_OFFSET = ("floor", "round")


@dataclass(frozen=True, kw_only=True)
class Preprocessing:
    """Pixels in 0..1, resized to `size`, then `(pixel - mean) / std` for each channel.

    crop: the shorter side goes to `size / crop_fraction`, the centre is cut out. pad: the longer side fits, the rest is
    filled. squash: both sides go to `size / crop_fraction`, whatever the aspect, and the centre is cut out. window: the
    picture keeps its own scale and is looked at through overlapping windows of `size` (segmentation only).

    crop_offset: where the centre begins if an odd number of pixels is cut off. floor: transformers, and every file that
    does not say. round: torchvision and timm, where a half goes to the even number.
    """

    size: tuple[int, int] = (224, 224)  # height, width
    resize: str = "crop"
    crop_fraction: float = 1.0
    interpolation: str = "bicubic"
    mean: tuple[float, ...] = HALF[0]
    std: tuple[float, ...] = HALF[1]
    # of images with more than 8 a channel: 2**bits - 1 is white. None: each image's own range decides, as in files of
    # earlier versions, and where the training images had 8
    bits: int | None = None
    crop_offset: str = "floor"

    def __post_init__(self) -> None:
        for name in ("size", "mean", "std"):
            value = getattr(self, name)
            if not isinstance(value, tuple | list) or not all(_is_number(v) for v in value):
                raise VitrailError(f"preprocessing {name} is a list of numbers, not {value!r}")
            object.__setattr__(self, name, tuple(value))
        if len(self.size) != 2 or any(type(side) is not int or side < 1 for side in self.size):
            raise VitrailError(f"preprocessing size is two whole numbers above 0 (height, width), not {self.size}")
        if not self.mean or len(self.mean) != len(self.std):
            raise VitrailError(
                f"preprocessing has {len(self.mean)} means and {len(self.std)} stds: one of each a channel"
            )
        if min(self.std) <= 0:
            raise VitrailError(f"preprocessing std is above 0 for every channel, not {self.std}")
        if self.resize not in RESIZE:
            raise VitrailError(f"preprocessing resize is {self.resize!r}; choose one of {', '.join(RESIZE)}")
        if self.interpolation not in INTERPOLATION:
            raise VitrailError(
                f"preprocessing interpolation is {self.interpolation!r}; choose one of {', '.join(INTERPOLATION)}"
            )
        if self.bits is not None and (type(self.bits) is not int or not 1 <= self.bits <= 32):
            raise VitrailError(f"preprocessing bits is a whole number from 1 to 32, not {self.bits!r}")
        if self.crop_offset not in CROP_OFFSET:
            raise VitrailError(f"preprocessing crop_offset is {self.crop_offset!r}; choose floor or round")
        if not _is_number(self.crop_fraction) or not 0 < self.crop_fraction <= 1:
            raise VitrailError(f"preprocessing crop_fraction is above 0 and at most 1, not {self.crop_fraction!r}")
        height, width = self.size
        if height * width > MOST_PIXELS * self.crop_fraction**2:
            raise VitrailError(
                f"preprocessing size {height} x {width} with crop_fraction {self.crop_fraction:g} makes every image "
                f"larger than {MOST_PIXELS:,} pixels: choose a smaller size or a larger fraction"
            )

    @property
    def channels(self) -> int:
        """How many channels an image has."""
        return len(self.mean)

    @property
    def before_crop(self) -> tuple[int, int]:
        """(height, width) that the centre is cut from."""
        fraction = 1.0 if self.resize == "pad" else self.crop_fraction
        # rounded down as timm does, but 224 / (224 / 354) is 354 whatever the floating point says
        height, width = (math.floor(side / fraction + 1e-6) for side in self.size)
        return height, width

    def replace(self, **changes: Any) -> Preprocessing:
        """A copy with some fields changed."""
        return dataclasses.replace(self, **changes)

    def for_channels(self, channels: int) -> Preprocessing:
        """The same for another number of channels: one grey channel has the mean of the colours', more repeat them."""
        if channels == self.channels:
            return self
        if channels == 1:
            return self.replace(mean=(sum(self.mean) / self.channels,), std=(sum(self.std) / self.channels,))
        repeats = -(-channels // self.channels)
        return self.replace(mean=(self.mean * repeats)[:channels], std=(self.std * repeats)[:channels])

    def to_dict(self) -> dict[str, Any]:
        """As a model file keeps it: JSON has lists, not tuples. `bits` and `crop_offset` only where they are not as in
        files without them, so that versions that do not know them read the others."""
        values = {name: list(v) if isinstance(v, tuple) else v for name, v in dataclasses.asdict(self).items()}
        if self.bits is None:
            del values["bits"]
        if self.crop_offset == "floor":
            del values["crop_offset"]
        return values

    @classmethod
    def from_dict(cls, values: Any) -> Preprocessing:
        """What `to_dict` gave; VitrailError for anything else."""
        known = {field.name for field in dataclasses.fields(cls)}
        if not isinstance(values, dict) or set(values) - known:
            raise VitrailError(f"preprocessing is an object with {', '.join(sorted(known))}, not {values!r}"[:300])
        return cls(**values)


def notes_on_offset(preprocessing: Preprocessing, library: str, rule: str) -> list[str]:
    """What to say of a file for a library whose centre crop has its own rule, where that shows."""
    cut_off = [before - side for before, side in zip(preprocessing.before_crop, preprocessing.size, strict=True)]
    shows = preprocessing.resize == "crop" or any(round(cut / 2) != cut // 2 for cut in cut_off)
    if preprocessing.crop_offset == rule or preprocessing.resize in ("pad", "window") or not shows:
        return []
    to = {"floor": "down", "round": "to the nearest whole number"}
    return [
        f"{library} rounds the offset of a centre crop {to[rule]}, this model's file {to[preprocessing.crop_offset]}: "
        "some crops begin one pixel beside, and their probabilities change a little"
    ]


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
