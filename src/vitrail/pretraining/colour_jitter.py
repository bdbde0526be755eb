"""Random changes of colour as strong as learning without labels needs them, for whole batches.

Brightness, saturation, hue and grey are each a matrix on a pixel's colour, and contrast is a scale about the mean: so
all of them together are one affine map of colours, as all moves of `augment.py` are one affine map of places.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

BRIGHTNESS, CONTRAST, SATURATION, HUE = 0.4, 0.4, 0.4, 0.1  # up to; hue in turns (SimCLR's for CIFAR, halved)
CHANGED, GREY = 0.8, 0.2  # how probable
BLUR_FROM = 64  # pixels: smaller pictures are not blurred, there is nothing to lose
DRAWS = 9  # numbers in [0, 1) that an image needs

_LUMA = torch.tensor([0.299, 0.587, 0.114])


def change_colours(images: Tensor, draws: Tensor, strength: float, blur: float = 0.0, solarize: float = 0.0) -> Tensor:
    """(B, C, H, W) in 0..1 and draws (B, DRAWS) -> the same shape. strength: 1 is usual, 0 changes nothing.
    blur, solarize: how probable."""
    if strength > 0:
        images = jitter(images, draws, strength)
    if blur > 0 and min(images.shape[2:]) >= BLUR_FROM:
        amount = torch.where(draws[:, 6] < blur, draws[:, 7], 0.0).view(-1, 1, 1, 1)
        images = images.lerp(_blurred(images), amount)
    if solarize > 0:
        inverted = (draws[:, 8] < solarize).view(-1, 1, 1, 1) & (images >= 0.5)
        images = torch.where(inverted, 1 - images, images)
    return images


def jitter(images: Tensor, draws: Tensor, strength: float) -> Tensor:
    """Brightness, contrast, saturation, hue and grey of each image by its own draws."""
    changed = draws[:, 0] < CHANGED
    around = draws[:, 1:5] * 2 - 1  # (B, 4)
    limits = strength * torch.tensor([BRIGHTNESS, CONTRAST, SATURATION, HUE])
    amounts = torch.where(changed[:, None], around * limits, 0.0)
    brightness, contrast, saturation = (1 + amounts[:, :3]).clamp(min=0.1).unbind(1)  # (B,) each
    if images.shape[1] == 3:
        grey = draws[:, 5] < GREY * min(1.0, strength)
        matrices = colour_matrices(torch.where(grey, 0.0, saturation), amounts[:, 3])
        images = torch.einsum("bij,bjhw->bihw", matrices, images)
    scale = (brightness * contrast).view(-1, 1, 1, 1)
    mean = images.mean(dim=(1, 2, 3), keepdim=True)
    shift = mean * (brightness * (1 - contrast)).view(-1, 1, 1, 1)
    return torch.addcmul(shift, images, scale).clamp_(0, 1)


def colour_matrices(saturation: Tensor, hue: Tensor) -> Tensor:
    """(B,) factors and (B,) turns -> (B, 3, 3): a rotation of the colour plane of YIQ, then a blend with grey."""
    to_yiq = torch.tensor([[0.299, 0.587, 0.114], [0.596, -0.274, -0.322], [0.211, -0.523, 0.312]])
    angle = 2 * math.pi * hue
    turn = torch.zeros(len(hue), 3, 3)
    turn[:, 0, 0] = 1
    turn[:, 1, 1], turn[:, 2, 2] = angle.cos(), angle.cos()
    turn[:, 1, 2], turn[:, 2, 1] = -angle.sin(), angle.sin()
    rotated = torch.linalg.inv(to_yiq) @ turn @ to_yiq
    grey = _LUMA.expand(3, 3)
    factor = saturation.view(-1, 1, 1)
    return factor * rotated + (1 - factor) * grey


def _blurred(images: Tensor) -> Tensor:
    """A Gaussian whose standard deviation is about a hundredth of the side."""
    sigma = max(1.0, min(images.shape[2:]) / 100)
    radius = math.ceil(2 * sigma)
    places = torch.arange(-radius, radius + 1, dtype=images.dtype)
    kernel = torch.exp(-places.square() / (2 * sigma**2))
    kernel = (kernel / kernel.sum()).expand(images.shape[1], 1, 1, -1)
    padded = F.pad(images, (radius, radius, radius, radius), mode="reflect")
    across = F.conv2d(padded, kernel, groups=images.shape[1])
    return F.conv2d(across, kernel.transpose(2, 3), groups=images.shape[1])
