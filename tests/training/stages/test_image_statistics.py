"""The size that images are cached at, and their mean colour."""

import numpy as np
import pytest
import torch

from vitrail.data.loading.cache import ArrayCache
from vitrail.training.stages.image_statistics import cached_shape, mean_and_std
from vitrail.weights.preprocessing import Preprocessing


@pytest.mark.parametrize(
    ("own", "size", "kept"),
    [
        ((32, 32), (32, 32), (32, 32)),  # never larger than they are
        ((32, 32), (224, 224), (32, 32)),
        ((480, 640), (128, 128), (147, 196)),  # the shorter side covers the model's input, at the aspect of the set
        ((200, 2000), (128, 128), (147, 512)),  # a panorama, within reason
        ((480, 640), (128, 256), (221, 294)),
    ],
)
def test_pictures_are_kept_at_their_aspect(own, size, kept):
    shape = cached_shape(own, Preprocessing(size=size))
    assert (shape.height, shape.width) == kept


def test_colours_are_mean_and_deviation():
    pixels = np.random.default_rng(0).integers(0, 256, (120, 4, 5, 2), dtype=np.uint8)
    mean, std = mean_and_std(ArrayCache(pixels, np.full((120, 2), 4), {}), 120)
    flat = torch.from_numpy(pixels).flatten(0, 2).double() / 255
    assert mean == pytest.approx(flat.mean(0).tolist(), abs=1e-3)
    assert std == pytest.approx(flat.std(0).tolist(), abs=1e-3)
    assert mean_and_std(ArrayCache(np.zeros_like(pixels), np.full((120, 2), 4), {}), 120)[1] == (0.01, 0.01)
