"""What feeds a run, made from its settings."""

import numpy as np
import pytest
import torch

from tests.training.choices.example_facts import facts
from vitrail.data.loading.augment import augment
from vitrail.data.loading.transforms import letterbox_of
from vitrail.tasks.registry import task_class
from vitrail.tasks.targets import maps_of
from vitrail.training.choices.recipe_choice import choose_recipe
from vitrail.training.settings import Settings
from vitrail.training.stages.build_model import usual_resize
from vitrail.training.stages.build_trainer import augmentation_of
from vitrail.weights.preprocessing import Preprocessing


@pytest.mark.parametrize(("crop", "aspect"), [(1.0, 1.0), (0.9, 0.9), (0.5, 0.75)])
def test_a_picture_that_is_kept_whole_is_not_squeezed(crop, aspect):
    settings = Settings().with_values({"augment.crop": crop})
    how = augmentation_of(settings.augment)
    assert how.crop == (crop, 1.0) and how.aspect == pytest.approx((aspect, 1 / aspect))


@pytest.mark.parametrize("epochs", [3, 30, 300])
@pytest.mark.parametrize("resize", ["pad", "squash", "crop"])
def test_by_default_nothing_is_moved_or_hidden_that_a_number_may_depend_on(epochs, resize):
    task = task_class("regress")
    assert usual_resize(task, "crop") == "pad" and usual_resize(task, "squash") == "squash"
    chosen = choose_recipe(Settings(), facts(task="regress", labels=("x",)), epochs)[0].augment
    how = augmentation_of(chosen, task)
    assert how.erase == 0
    sizes = np.array([[64, 96], [96, 64], [50, 50], [30, 200]])
    preprocessing = Preprocessing(size=(48, 64), resize=resize)
    pixels = torch.zeros(4, 40, 40, 3, dtype=torch.uint8)
    draws = [
        augment(pixels, sizes, preprocessing, how, seed=seed, epoch=epoch, indices=np.arange(4) + first)[1]
        for seed in range(3) for epoch in range(3) for first in (0, 100)
    ]  # fmt: skip
    for maps in draws[1:]:
        assert torch.equal(maps, draws[0])
    if resize != "crop":  # it lies where prediction puts it, within the rounding to whole pixels
        letterboxes = [letterbox_of((int(height), int(width)), preprocessing) for height, width in sizes]
        corners = torch.tensor([[-1.0, -1.0, 1.0], [1.0, 1.0, 1.0]]).T
        shown = torch.linalg.inv(draws[0]) @ corners  # where the picture's corners lie in the input
        expected = torch.linalg.inv(maps_of(letterboxes)) @ corners
        assert (shown - expected)[:, :2].abs().max() <= 2 / 48


def test_classes_are_still_shown_in_parts():
    how = augmentation_of(choose_recipe(Settings(), facts(), 30)[0].augment, task_class("classify"))
    preprocessing = Preprocessing(size=(32, 32), resize="crop")
    pixels, sizes = torch.zeros(8, 16, 16, 3, dtype=torch.uint8), np.full((8, 2), 40)
    maps = augment(pixels, sizes, preprocessing, how, seed=0, epoch=0, indices=np.arange(8))[1]
    assert len({tuple(one.flatten().tolist()) for one in maps}) == 8
