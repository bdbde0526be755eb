"""Multi-crop: several views of each image of a batch, from one decoded picture.

What a view shows depends on (seed, epoch, index, number of the view) alone, as every augmentation does.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from vitrail.data.loading.augment import Augmentation, crop_maps, flip_maps, sample
from vitrail.data.loading.loader import Batch, Loader, RawBatch
from vitrail.data.loading.rng import step_seed, uniform
from vitrail.data.loading.sampler import BatchIndices
from vitrail.pretraining.colour_jitter import DRAWS, change_colours


@dataclass(frozen=True, kw_only=True)
class View:
    """How one view of an image is made."""

    size: tuple[int, int]  # pixels, height and width
    area: tuple[float, float]  # part of the picture's area that it shows
    flip: str = "horizontal"
    colour: float = 1.0  # strength of the changes of colour
    blur: float = 0.0  # how probable
    solarize: float = 0.0

    @property
    def augmentation(self) -> Augmentation:
        """The crop, as augmentation draws it."""
        return Augmentation(crop=self.area, flip=self.flip, policy="none")


@dataclass(frozen=True)
class ViewBatch(Batch):
    """A batch with several views of each image; `images` is the first of them."""

    views: tuple[Tensor, ...] = ()  # (B, C, h, w) each, normalised, the global ones first


@dataclass(frozen=True, kw_only=True)
class ViewLoader(Loader):
    """A loader whose batches have several views of each image."""

    views: tuple[View, ...] = ()

    def make_batch(self, step: int, drawn: BatchIndices, raw: RawBatch) -> ViewBatch:
        """All views of a step's images."""
        prep = self.preprocessing
        mean, std = (torch.tensor(values).view(1, -1, 1, 1) for values in (prep.mean, prep.std))
        pictures = raw.pixels.permute(0, 3, 1, 2).float().div_(255)  # (B, C, H, W), converted once for all views
        sizes = torch.from_numpy(np.asarray(raw.sizes)).float()
        views = []
        for number, view in enumerate(self.views):
            images = make_view(pictures, sizes, view, prep.resize, mean, seed=step_seed(self.seed, number), drawn=drawn)
            views.append(images.sub_(mean).div_(std))
        keys = self.image_keys(step)
        return ViewBatch(step, views[0], raw.targets, drawn.indices, None, keys, views=tuple(views))


def make_view(
    pictures: Tensor, sizes: Tensor, view: View, resize: str, fill: Tensor, *, seed: int, drawn: BatchIndices
) -> Tensor:
    """One view of each picture (B, C, H, W) in 0..1 -> (B, C, *view.size). sizes (B, 2): the pictures' own heights and
    widths; fill (1, C, 1, 1): the colour beyond their edges."""
    place = torch.from_numpy(uniform(seed, drawn.epoch, drawn.keys, 4, "place")).float()
    maps = crop_maps(sizes, view.size, resize, view.augmentation, place)
    # anew in every epoch: flips that take turns, as for labels, would leave two views of an image for ever alike or not
    flipped = torch.from_numpy(uniform(seed, drawn.epoch, drawn.keys, 2, "mirror") < 0.5)
    maps = maps @ flip_maps(view.flip, flipped)
    images = sample(pictures, maps[:, :2], view.size, fill)
    draws = torch.from_numpy(uniform(seed, drawn.epoch, drawn.keys, DRAWS, "colour")).float()
    return change_colours(images, draws, view.colour, view.blur, view.solarize)
