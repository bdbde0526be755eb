"""What decoded training images tell: their mean colour, and at which size to keep them."""

from __future__ import annotations

import torch

from vitrail.data.loading.cache import ImageCache, Shape
from vitrail.data.loading.sampler import evenly_spaced
from vitrail.weights.preprocessing import Preprocessing

HEADROOM = 1.15  # images are cached so much larger than the model's input, where they are that large
LONGEST = 4  # times the model's input, for panoramas
DULL = 0.01  # a standard deviation below this is taken for this: images of one colour
IMAGES = 500  # that the mean and the standard deviation are computed from


def cached_shape(sizes: tuple[int, int], preprocessing: Preprocessing) -> Shape:
    """The size to cache images at: the shorter side a little above the model's input, at the usual aspect of the set
    (`sizes`, median height and width), and never above their own size."""
    size, channels = preprocessing.size, preprocessing.channels
    if preprocessing.resize == "window":
        return Shape(*sizes, channels, exact=True, bits=preprocessing.bits)
    scale = min(1.0, max(HEADROOM * side / own for side, own in zip(size, sizes, strict=True)))
    height, width = (max(1, min(round(own * scale), LONGEST * max(size))) for own in sizes)
    return Shape(height, width, channels, bits=preprocessing.bits)


def mean_and_std(cache: ImageCache, count: int) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and standard deviation of each channel over some of the `count` cached images, in 0..1."""
    indices = evenly_spaced(count, IMAGES)
    total = squares = torch.zeros((), dtype=torch.float64)
    number = 0
    for start in range(0, len(indices), 50):
        pixels = cache.take(indices[start : start + 50])[0].flatten(0, 2).double() / 255  # (pixels, channels)
        total, squares, number = total + pixels.sum(0), squares + pixels.square().sum(0), number + len(pixels)
    mean = (total / number).tolist()
    std = (squares / number - (total / number) ** 2).clamp(min=DULL**2).sqrt().tolist()
    return tuple(round(value, 4) for value in mean), tuple(round(value, 4) for value in std)
