"""One random change of random strength a picture, after TrivialAugment, with PIL."""

from __future__ import annotations

import random
from collections.abc import Callable

from PIL import Image, ImageEnhance, ImageOps

GREY = (128, 128, 128)


def _affine(image: Image.Image, *matrix: float) -> Image.Image:
    return image.transform(
        image.size, Image.Transform.AFFINE, matrix, resample=Image.Resampling.BILINEAR, fillcolor=GREY
    )


def _shear(image: Image.Image, x: float, y: float) -> Image.Image:
    """Around the centre."""
    return _affine(image, 1, x, -x * image.height / 2, y, 1, -y * image.width / 2)


CHANGES: tuple[Callable[[Image.Image, float], Image.Image], ...] = (  # strengths are -1 to 1
    lambda image, s: image,
    lambda image, s: image.rotate(30 * s, Image.Resampling.BILINEAR, fillcolor=GREY),
    lambda image, s: _shear(image, 0.3 * s, 0),
    lambda image, s: _shear(image, 0, 0.3 * s),
    lambda image, s: _affine(image, 1, 0, 0.25 * s * image.width, 0, 1, 0),
    lambda image, s: _affine(image, 1, 0, 0, 0, 1, 0.25 * s * image.height),
    lambda image, s: ImageEnhance.Brightness(image).enhance(1 + 0.9 * s),
    lambda image, s: ImageEnhance.Contrast(image).enhance(1 + 0.9 * s),
    lambda image, s: ImageEnhance.Color(image).enhance(1 + 0.9 * s),
    lambda image, s: ImageEnhance.Sharpness(image).enhance(1 + 0.9 * s),
    lambda image, s: ImageOps.posterize(image, round(8 - 6 * abs(s))),
    lambda image, s: ImageOps.solarize(image, round(256 * (1 - abs(s)))),
    lambda image, s: ImageOps.autocontrast(image),
    lambda image, s: ImageOps.equalize(image),
)


def trivial(image: Image.Image) -> Image.Image:
    return random.choice(CHANGES)(image, random.uniform(-1, 1))
