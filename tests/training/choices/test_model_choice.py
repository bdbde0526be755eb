"""The model that is chosen: always a network that can be built, with reasons in words."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.training.choices.example_facts import facts
from vitrail.model.vit import ViT
from vitrail.training.choices.model_choice import (
    choose_model,
    choose_view,
    config_of,
    patch_for,
    size_for,
    width_and_depth,
)
from vitrail.training.settings import Settings


@pytest.mark.parametrize(("objects", "candidates"), [(0, None), (1, 20), (3, 20), (30, 70), (500, 300)])
def test_candidates_follow_the_objects_of_a_picture(objects, candidates):
    with_objects = facts(task="detect" if objects else "classify", objects=objects)
    assert choose_model(Settings(), with_objects)[0].model.candidates == candidates
    own = Settings().with_values({"model.candidates": 7})
    assert choose_model(own, with_objects)[0].model.candidates == 7


@settings(deadline=None)  # the first example imports
@given(
    images=st.integers(2, 10**6), height=st.integers(1, 5000), width=st.integers(1, 5000), grey=st.booleans(),
    channels=st.sampled_from([3, 4, 5, 13]), device=st.sampled_from(["cpu", "cuda"]),
)  # fmt: skip
def test_any_data_gets_a_network_with_small_patches_and_wide_heads(images, height, width, grey, channels, device):
    seen = facts(images=images, height=height, width=width, grey=grey, channels=channels, device=device)
    chosen, why = choose_model(Settings(), seen)
    config = config_of(chosen, {"classes": 2})
    assert config.head_dim >= 32 and config.stem == "conv"
    assert 7 <= config.grid[0] <= 64 and config.grid[0] == config.grid[1]
    assert config.channels == (1 if grey else channels)
    assert 2 <= chosen.train.batch_size <= max(2, images)
    assert len(why) == 1 and f"{images:,} training images" in why[0]


def test_one_number_is_said_in_the_singular() -> None:
    for task, labels, words in (("depth", ["depth (m)"], "1 number"), ("regress", ["x", "y"], "2 numbers")):
        (reason,) = choose_model(Settings(), facts(task=task, labels=labels)).reasons
        assert f"px in {words} on " in reason


def test_cifar_and_photos():
    small = config_of(choose_model(Settings(), facts())[0], {"classes": 10})
    assert (small.image_size, small.patch_size) == ((32, 32), (4, 4))
    photo = config_of(choose_model(Settings(), facts(height=480, width=640, images=3000))[0], {"classes": 5})
    assert photo.image_size == (128, 128) and photo.patch_size == (16, 16)
    assert (small.stem_maps, photo.stem_maps) == ("fine", "wide")
    assert [(config.depth, config.stem_blocks) for config in (small, photo)] == [(2, 3), (4, 2)]
    numbers = config_of(choose_model(Settings(), facts(task="regress"))[0], {"classes": 1})
    assert (numbers.depth, numbers.stem_blocks) == (4, 2)
    masks = choose_model(Settings(), facts(height=480, width=640, images=3000, task="segment"))[0]
    assert masks.model.stem_maps == "fine"  # which its decoder reads
    ViT(small)


def view(settings=None, **changes):
    chosen = choose_model(Settings().with_values(settings or {}), facts(**changes))[0]
    return choose_view(chosen, facts(**changes)).model.crop_fraction


def test_small_pictures_are_shown_by_their_middle_unless_they_are_taken_alike():
    assert view() == 32 / 34
    assert view(alike=True) == view(height=8) == view(height=480, width=640) == view(task="regress") == 1
    assert view({"augment.crop": 1.0}) == view({"model.model": "mu/4", "model.image_size": 32}) == 1
    assert view({"model.crop_fraction": 0.8}) == view({"model.crop_fraction": 0.8}, alike=True) == 0.8


def test_shorter_runs_have_smaller_batches():
    sizes = [choose_model(Settings(), facts(minutes=m))[0].train.batch_size for m in (0, 5, 20, 30)]
    assert sizes == [256, 64, 128, 256]
    assert choose_model(Settings(), facts(minutes=20, device="cuda"))[0].train.batch_size == 256


def test_what_was_asked_wins():
    own = Settings().with_values(
        {"model.width": 64, "model.patch_size": 8, "model.stem": "linear", "train.batch_size": 6}
    )
    config = config_of(choose_model(own, facts())[0], {"classes": 10})
    assert (config.width, config.patch_size, config.stem, config.stem_blocks) == (64, (8, 8), "linear", 0)
    preset = config_of(choose_model(Settings().with_values({"model.model": "S/16"}), facts())[0], {"classes": 10})
    assert (preset.width, preset.depth, preset.image_size, preset.pool) == (384, 12, (224, 224), "cls")


def test_batches_for_pixels_are_small_where_pictures_are_large():
    photos = facts(images=367, height=360, width=480, task="segment", minutes=60.0)
    assert choose_model(Settings(), photos)[0].train.batch_size == 8
    icons = facts(images=5000, height=64, width=64, task="segment", minutes=4.0)
    assert choose_model(Settings(), icons)[0].train.batch_size == 16


@pytest.mark.parametrize(
    ("height", "width", "minutes", "size", "patch"),
    [(480, 640, 8.0, (384, 512), 16), (480, 640, 0.0, (192, 256), 16), (150, 200, 8.0, (144, 192), 16),
     (64, 64, 8.0, (64, 64), 8), (96, 128, 0.0, (96, 96), 12)],
)  # fmt: skip
def test_numbers_of_photos_are_told_at_their_aspect_and_larger(height, width, minutes, size, patch):
    """What fits into the time comes after (`size_choice.py`). Small pictures are at most 128 px anyway."""
    known = facts(images=205, height=height, width=width, task="regress", labels=("count",), minutes=minutes)
    model = choose_model(Settings(), known)[0].model
    assert (model.image_size, model.image_width or model.image_size) == size and model.patch_size == patch
    asked = choose_model(Settings().with_values({"model.image_size": 96, "model.patch_size": 8}), known)[0].model
    assert (asked.image_size, asked.image_width, asked.patch_size) == (96, None, 8)


def test_patches():
    assert [patch_for(size) for size in (8, 28, 32, 64, 128, 224, 12)] == [1, 4, 4, 8, 16, 32, 1]
    assert [size_for(side) for side in (3, 8, 28, 30, 64, 65, 100, 128, 480)] == [8, 8, 28, 28, 64, 64, 96, 128, 128]


def test_size_follows_time_number_and_machine():
    assert width_and_depth(facts(minutes=30.0)) == width_and_depth(facts(images=500, minutes=600.0)) == (128, 4)
    assert width_and_depth(facts(minutes=600.0)) == width_and_depth(facts(device="cuda", images=3000)) == (192, 6)
    assert width_and_depth(facts(device="cuda")) == (384, 12)
    assert width_and_depth(facts(device="cuda", minutes=10.0)) == (192, 6)
