"""Augmentation of whole batches on tensors. What happens to an image depends on (seed, epoch, its index) alone.

All moves (crop, flip, rotation, shear, shift) are one affine map, so an image is sampled once and stays sharp.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from vitrail.data.loading.rng import uniform
from vitrail.weights.preprocessing import Preprocessing


@dataclass(frozen=True, kw_only=True)
class Augmentation:
    """How much an image may change without changing its label."""

    crop: tuple[float, float] = (0.35, 1.0)  # part of the area that is kept
    aspect: tuple[float, float] = (3 / 4, 4 / 3)
    anywhere: bool = True  # whether what is kept may lie anywhere; False: in the middle, where prediction takes it
    flip: str = "horizontal"  # none, horizontal, vertical, both; off when it changes the label
    # none; trivial: one random change of random strength; rand: `changes` of them at `strength`; colour: as trivial,
    # but nothing is turned, sheared or shifted, which would leave a box no longer tight around its object
    policy: str = "trivial"
    changes: int = 2
    strength: float = 0.5
    erase: float = 0.0  # probability that a rectangle is painted over


def augment(
    pixels: Tensor,
    sizes: np.ndarray,
    preprocessing: Preprocessing,
    augmentation: Augmentation,
    *,
    seed: int,
    epoch: int,
    indices: np.ndarray,
) -> tuple[Tensor, Tensor]:
    """Augment a batch: uint8 (B, H, W, C), each a whole image squashed to one size -> float (B, C, *size) in 0..1, and
    the affine maps (B, 3, 3) that say where each output pixel came from.

    `sizes` (B, 2) are the images' own heights and widths. The resize rule of `preprocessing`: crop stays inside the
    image, pad goes over its edges, squash ignores its aspect, window keeps its scale. What lies beyond the edges is
    filled with the mean colour.
    """
    target = preprocessing.size
    images = pixels.permute(0, 3, 1, 2).float() / 255  # (B, C, H, W)
    draw = _draw(seed, epoch, indices, 8, "place")  # one column a decision
    image_sizes = torch.from_numpy(np.asarray(sizes)).float()
    maps = crop_maps(image_sizes, target, preprocessing.resize, augmentation, draw[:, :4])
    maps = maps @ flip_maps(augmentation.flip, mirrored(seed, epoch, indices))
    changes = _draw_changes(augmentation, seed, epoch, indices)
    for op, strength in changes:
        maps = maps @ move_maps(op, strength, target)
    fill = torch.tensor(preprocessing.mean).view(1, -1, 1, 1)
    images = sample(images, maps[:, :2], target, fill)
    for op, strength in changes:
        images = recolour(images, op, strength)
    if augmentation.erase > 0:
        images = erased(images, augmentation.erase, draw[:, 4:], fill)
    return images, maps


def _draw_changes(
    augmentation: Augmentation, seed: int, epoch: int, indices: np.ndarray
) -> list[tuple[Tensor, Tensor]]:
    """The random changes of a batch, one after another: for each image its number in CHANGES and a strength in -1..1,
    (B,) each."""
    rounds = {"none": 0, "trivial": 1, "colour": 1, "rand": augmentation.changes}[augmentation.policy]
    first = len(CHANGES) - len(RECOLOUR) if augmentation.policy == "colour" else 0
    changes = []
    for k in range(rounds):
        which, strength = _draw(seed, epoch, indices, 2, f"change{k}").unbind(1)
        op, strength = first + (which * (len(CHANGES) - first)).long(), strength * 2 - 1
        if augmentation.policy == "rand":
            strength = strength.sign() * augmentation.strength
        changes.append((op, strength))
    return changes


def _draw(seed: int, epoch: int, indices: np.ndarray, count: int, stream: str) -> Tensor:
    return torch.from_numpy(uniform(seed, epoch, indices, count, stream)).float()  # (B, count)


# ---- where a pixel comes from: maps (B, 3, 3) from the result's coordinates in [-1, 1] to the picture's


def crop_maps(sizes: Tensor, target: tuple[int, int], resize: str, augmentation: Augmentation, draw: Tensor) -> Tensor:
    """A random crop with `augmentation.crop` of the image's area, at a random place where it may lie anywhere."""
    height, width = sizes.unbind(1)
    if resize == "squash":
        height, width = torch.full_like(height, target[0]), torch.full_like(width, target[1])
    area = augmentation.crop[0] + (augmentation.crop[1] - augmentation.crop[0]) * draw[:, 0]
    low, high = math.log(augmentation.aspect[0]), math.log(augmentation.aspect[1])
    ratio = torch.exp(low + (high - low) * draw[:, 1]) * target[1] / target[0]  # width / height of the part
    whole = height * width
    if resize == "pad":  # the area is that of the padded picture
        longest = torch.maximum(height / target[0], width / target[1])
        whole = longest**2 * target[0] * target[1]
    part_height, part_width = (area * whole / ratio).sqrt(), (area * whole * ratio).sqrt()
    if resize == "window":  # the size that the model sees, a little nearer or farther
        nearer = torch.exp((draw[:, 0] * 2 - 1) * math.log(augmentation.crop[0]) / 2)
        part_height, part_width = target[0] * nearer, target[1] * nearer
    elif resize != "pad":  # too wide or too tall for the picture: smaller, at the same aspect
        shrink = torch.minimum(height / part_height, width / part_width).clamp(max=1)
        part_height, part_width = part_height * shrink, part_width * shrink
    scale_y, scale_x = part_height / height, part_width / width
    maps = torch.zeros(len(sizes), 3, 3)
    maps[:, 0, 0], maps[:, 1, 1], maps[:, 2, 2] = scale_x, scale_y, 1
    if augmentation.anywhere:
        maps[:, 0, 2] = (draw[:, 2] * 2 - 1) * (1 - scale_x).abs()
        maps[:, 1, 2] = (draw[:, 3] * 2 - 1) * (1 - scale_y).abs()
    return maps


def mirrored(seed: int, epoch: int, indices: np.ndarray) -> Tensor:
    """Whether each image is flipped across and down, (B, 2): by chance in the first epoch, then in turn, so that a
    short run sees both sides of every image equally often."""
    first = _draw(seed, 0, indices, 2, "mirror") < 0.5
    return first ^ torch.tensor([bool(epoch & 1), bool(epoch & 2)])


def flip_maps(flip: str, mirrored: Tensor) -> Tensor:
    """(n, 2) booleans, across and down -> maps (n, 3, 3) that mirror these images in the directions of `flip`."""
    maps = torch.eye(3).repeat(len(mirrored), 1, 1)
    if flip in ("horizontal", "both"):
        maps[:, 0, 0] = 1 - 2 * mirrored[:, 0].float()
    if flip in ("vertical", "both"):
        maps[:, 1, 1] = 1 - 2 * mirrored[:, 1].float()
    return maps


def move_maps(op: Tensor, strength: Tensor, target: tuple[int, int]) -> Tensor:
    """Turn up to 30 degrees, shear up to 0.3, shift up to a quarter; the other changes move nothing."""
    maps = torch.eye(3).repeat(len(op), 1, 1)
    tall = target[0] / target[1]
    angle = torch.where(op == CHANGES.index("turn"), strength * math.pi / 6, 0.0)
    cos, sin = angle.cos(), angle.sin()
    maps[:, 0, 0], maps[:, 0, 1], maps[:, 1, 0], maps[:, 1, 1] = cos, -sin * tall, sin / tall, cos
    maps[:, 0, 1] += torch.where(op == CHANGES.index("shear across"), strength * 0.3 * tall, 0.0)
    maps[:, 1, 0] += torch.where(op == CHANGES.index("shear down"), strength * 0.3 / tall, 0.0)
    maps[:, 0, 2] += torch.where(op == CHANGES.index("shift across"), strength * 0.5, 0.0)
    maps[:, 1, 2] += torch.where(op == CHANGES.index("shift down"), strength * 0.5, 0.0)
    return maps


def sample(images: Tensor, maps: Tensor, target: tuple[int, int], fill: Tensor) -> Tensor:
    """(B, C, H, W) -> (B, C, *target); what lies outside has the colour `fill`, (1, C, 1, 1)."""
    grid = F.affine_grid(maps, [len(images), images.shape[1], *target], align_corners=False)
    return F.grid_sample(images - fill, grid, mode="bilinear", padding_mode="zeros", align_corners=False) + fill


# ---- what a pixel becomes: (n, C, H, W) in 0..1 and a strength in -1..1 for each image


def _blend(images: Tensor, other: Tensor, strength: Tensor) -> Tensor:
    """Towards `other` for negative strengths, away from it for positive ones."""
    factor = 1 + 0.9 * strength[:, None, None, None]
    return other + (images - other) * factor


def _grey(images: Tensor) -> Tensor:
    return images.mean(dim=1, keepdim=True)


def brightness(images: Tensor, strength: Tensor) -> Tensor:
    """Towards black, or brighter."""
    return _blend(images, torch.zeros_like(images), strength)


def contrast(images: Tensor, strength: Tensor) -> Tensor:
    """Towards the image's mean grey, or away from it."""
    return _blend(images, _grey(images).mean(dim=(2, 3), keepdim=True), strength)


def saturation(images: Tensor, strength: Tensor) -> Tensor:
    """Towards its grey image, or more colourful."""
    return _blend(images, _grey(images), strength)


def sharpness(images: Tensor, strength: Tensor) -> Tensor:
    """Towards a blurred image, or sharper."""
    return _blend(images, F.avg_pool2d(F.pad(images, (1, 1, 1, 1), mode="replicate"), 3, 1), strength)


def posterize(images: Tensor, strength: Tensor) -> Tensor:
    """Fewer levels a channel: from 256 down to 4 at full strength."""
    levels = torch.round(8 - 6 * strength.abs())[:, None, None, None].exp2()  # 8 bits down to 2
    return (images * levels).floor().clamp(max=levels - 1) / (levels - 1)


def solarize(images: Tensor, strength: Tensor) -> Tensor:
    """Values above a threshold are inverted; at full strength all above 0 are."""
    return torch.where(images > 1 - strength.abs()[:, None, None, None], 1 - images, images)


def autocontrast(images: Tensor, strength: Tensor) -> Tensor:
    """Each channel stretched to 0..1; the strength does not matter."""
    low, high = images.amin(dim=(2, 3), keepdim=True), images.amax(dim=(2, 3), keepdim=True)
    return torch.where(high > low, (images - low) / (high - low).clamp(min=1e-6), images)


def equalize(images: Tensor, strength: Tensor) -> Tensor:
    """Each channel's values spread evenly, by the ranks of its 256 levels."""
    flat = (images.clamp(0, 1) * 255).round().long().flatten(0, 1).flatten(1)  # (n C, H W)
    counts = torch.zeros(flat.shape[0], 256).scatter_add_(1, flat, torch.ones_like(flat, dtype=torch.float32))
    ranks = counts.cumsum(1)
    first = counts.gather(1, flat.amin(dim=1, keepdim=True))
    spread = (ranks - first) / (flat.shape[1] - first).clamp(min=1)
    constant = first == flat.shape[1]
    return torch.where(constant, flat / 255, spread.gather(1, flat)).reshape(images.shape)


RECOLOUR: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "brightness": brightness,
    "contrast": contrast,
    "saturation": saturation,
    "sharpness": sharpness,
    "posterize": posterize,
    "solarize": solarize,
    "autocontrast": autocontrast,
    "equalize": equalize,
}
CHANGES = ("none", "turn", "shear across", "shear down", "shift across", "shift down", *RECOLOUR)


def recolour(images: Tensor, op: Tensor, strength: Tensor) -> Tensor:
    """The change of colour that each image drew, (n, C, H, W) -> the same; other changes leave it as it is."""
    for name, change in RECOLOUR.items():
        chosen = (op == CHANGES.index(name)).nonzero()[:, 0]
        if len(chosen):
            images[chosen] = change(images[chosen], strength[chosen]).clamp(0, 1)
    return images


def erased(images: Tensor, probability: float, draw: Tensor, fill: Tensor) -> Tensor:
    """A rectangle of one colour over 2 to 33 % of the area of some of the images."""
    height, width = images.shape[2:]
    area = torch.where(draw[:, 0] < probability, 0.02 + 0.31 * draw[:, 0] / probability, 0.0)
    aspect = torch.exp((draw[:, 1] * 2 - 1) * math.log(3))
    half_height, half_width = (area * aspect).sqrt() / 2, (area / aspect).sqrt() / 2
    y = (torch.arange(height) + 0.5)[None] / height
    x = (torch.arange(width) + 0.5)[None] / width
    rows = (y - draw[:, 2:3]).abs() < half_height[:, None]  # (B, H)
    columns = (x - draw[:, 3:4]).abs() < half_width[:, None]  # (B, W)
    return torch.where((rows[:, :, None] & columns[:, None, :])[:, None], fill, images)
