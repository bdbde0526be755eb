"""A conv stem's first kernels, from the pictures."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from vitrail.data.loading.cache import ArrayCache
from vitrail.model.config import ViTConfig
from vitrail.model.vit import ViT
from vitrail.training.optim.whitening import start_from_images
from vitrail.weights.preprocessing import Preprocessing


@pytest.fixture(scope="module")
def pictures() -> np.ndarray:
    """Smooth, as photos are: neighbours are nearly equal."""
    rough = torch.rand(64, 3, 8, 8, generator=torch.Generator().manual_seed(0))
    smooth = F.interpolate(rough, (32, 32), mode="bicubic").clamp(0, 1)
    return (smooth * 255).byte().permute(0, 2, 3, 1).numpy()


def started(pictures: np.ndarray, **changes: object) -> tuple[ViT, ViT]:
    """A model before and after."""
    values = {"image_size": 32, "patch_size": 4, "width": 128, "depth": 1, "heads": 4, "stem": "conv", "classes": 2}
    torch.manual_seed(0)
    before = ViT(ViTConfig(**(values | changes)))  # type: ignore[arg-type]
    after = ViT(before.config)
    after.load_state_dict(before.state_dict())
    cache = ArrayCache(pictures, np.full((len(pictures), 2), 32), {})
    start_from_images(after, cache, len(pictures), Preprocessing(size=(32, 32)))
    return before, after


def likeness(model: ViT, pictures: np.ndarray) -> float:
    """The mean correlation of what two of the first 27 kernels see."""
    images = torch.from_numpy(pictures).permute(0, 3, 1, 2) / 127.5 - 1
    seen = model.stem.layers[0](images).transpose(0, 1).flatten(1)[:27]
    return torch.corrcoef(seen).abs().fill_diagonal_(0).mean().item()


def test_kernels_that_start_from_images_see_different_things(pictures):
    random, whitened = started(pictures)
    assert likeness(whitened, pictures) < 0.1 < 0.3 < likeness(random, pictures)
    weight, drawn = whitened.stem.layers[0].weight, random.stem.layers[0].weight
    assert torch.equal(weight[:27], -weight[27:54]) and torch.equal(weight[54:], drawn[54:])


@pytest.mark.parametrize("changes", [{"width": 64, "heads": 2}, {"stem": "linear"}], ids=str)
def test_a_stem_without_room_for_all_directions_stays_as_it_is(pictures, changes):
    before, after = started(pictures, **changes)
    assert all(torch.equal(after.state_dict()[name], tensor) for name, tensor in before.state_dict().items())


@pytest.mark.parametrize("side", [1, 32])
def test_pictures_of_one_colour_give_finite_kernels(side):
    _, model = started(np.full((10, side, side, 3), 90, dtype=np.uint8))
    assert all(parameter.isfinite().all() for parameter in model.parameters())
