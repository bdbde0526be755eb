"""What auto chooses: always a network that can be built, with reasons in words."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vitrail.model.vit import ViT
from vitrail.training.choose import (
    Facts,
    choose_model,
    choose_optimizer,
    choose_recipe,
    choose_view,
    config_of,
    patch_for,
    size_for,
    turns_meaning,
    usual_rate,
    width_and_depth,
)  # fmt: skip
from vitrail.training.settings import Settings


@pytest.mark.parametrize(("objects", "candidates"), [(0, 0), (1, 20), (3, 20), (30, 70), (500, 300)])
def test_candidates_follow_the_objects_of_a_picture(objects, candidates):
    found = facts(task="detect" if objects else "classify", objects=objects)
    assert choose_model(Settings(), found)[0].model.candidates == candidates
    asked = Settings().with_values({"model.candidates": 7})
    assert choose_model(asked, found)[0].model.candidates == 7


def facts(**changes):
    values = {
        "images": 40000, "height": 32, "width": 32, "grey": False, "channels": 3, "labels": ("cat", "dog"),
        "task": "classify", "cores": 2, "device": "cpu", "minutes": 0.0,
    }  # fmt: skip
    return Facts(**{**values, **changes})


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


def view(asked=None, **changes):
    chosen = choose_model(Settings().with_values(asked or {}), facts(**changes))[0]
    return choose_view(chosen, facts(**changes)).model.crop_fraction


def test_small_pictures_are_shown_by_their_middle_unless_they_are_taken_alike():
    assert view() == 32 / 34
    assert view(alike=True) == view(height=8) == view(height=480, width=640) == view(task="regress") == 1
    assert view({"augment.crop": 1.0}) == view({"model.model": "mu/4", "model.image_size": 32}) == 1
    assert view({"model.crop_fraction": 0.8}) == view({"model.crop_fraction": 0.8}, alike=True) == 0.8


def test_pictures_taken_alike_are_not_flipped_and_hardly_cropped():
    few = choose_recipe(Settings(), facts(alike=True), epochs=8)
    assert (few[0].augment.flip, few[0].augment.crop) == ("none", 0.9)
    assert "flips none (those of a class are taken from one side)" in few[1][0]
    digits = choose_recipe(Settings(), facts(alike=True, labels=list("0123456789")), epochs=8)
    assert "flips none:" in digits[1][0]
    asked = Settings().with_values({"augment.flip": "horizontal", "augment.crop": 0.6})
    chosen, why = choose_recipe(asked, facts(alike=True), epochs=8)
    assert (chosen.augment.flip, chosen.augment.crop) == ("horizontal", 0.6) and "one side" not in why[0]
    assert choose_recipe(Settings(), facts(), epochs=8)[0].augment.crop == 0.75


def test_shorter_runs_have_smaller_batches():
    sizes = [choose_model(Settings(), facts(minutes=m))[0].train.batch_size for m in (0, 5, 20, 30)]
    assert sizes == [256, 64, 128, 256]
    assert choose_model(Settings(), facts(minutes=20, device="cuda"))[0].train.batch_size == 256


def test_what_was_asked_wins():
    asked = Settings().with_values(
        {"model.width": 64, "model.patch_size": 8, "model.stem": "linear", "train.batch_size": 6}
    )
    config = config_of(choose_model(asked, facts())[0], {"classes": 10})
    assert (config.width, config.patch_size, config.stem, config.stem_blocks) == (64, (8, 8), "linear", 0)
    preset = config_of(choose_model(Settings().with_values({"model.model": "S/16"}), facts())[0], {"classes": 10})
    assert (preset.width, preset.depth, preset.image_size, preset.pool) == (384, 12, (224, 224), "cls")


def test_the_more_often_an_image_is_seen_the_more_it_changes():
    few, _ = choose_recipe(Settings(), facts(), 8)
    some, _ = choose_recipe(Settings(), facts(), 30)
    many, why = choose_recipe(Settings(), facts(), 200)
    assert (few.augment.policy, some.augment.policy, many.augment.policy) == ("none", "trivial", "trivial")
    assert few.augment.crop > some.augment.crop > many.augment.crop
    assert few.train.cutmix == 0 and many.train.cutmix > 0 and "cutmix" in why[0]
    assert choose_recipe(Settings(), facts(task="regress"), 200)[0].train.mixup == 0
    kept = Settings().with_values({"augment.policy": "none", "train.mixup": 0.0, "augment.erase": 0.0})
    assert choose_recipe(kept, facts(), 200)[0].augment.policy == "none"


@pytest.mark.parametrize(
    ("labels", "turns"),
    [
        ([str(n) for n in range(10)], True), (["a", "b", "c"], True), (["turn left", "turn right"], True),
        (["left_hand", "cup"], True), (["cat", "dog"], False), (["bright", "dark"], False), (["x-ray", "ct"], False),
    ],
)  # fmt: skip
def test_flips_are_off_where_they_change_the_label(labels, turns):
    assert turns_meaning(labels) is turns
    flip = choose_recipe(Settings(), facts(labels=labels), 10)[0].augment.flip
    assert flip == ("none" if turns else "horizontal")


def test_batches_for_pixels_are_small_where_pictures_are_large():
    photos = facts(images=367, height=360, width=480, task="segment", minutes=60.0)
    assert choose_model(Settings(), photos)[0].train.batch_size == 8
    icons = facts(images=5000, height=64, width=64, task="segment", minutes=4.0)
    assert choose_model(Settings(), icons)[0].train.batch_size == 16


SHARES = [("mu/4", 16, 0.5), ("Ti/4", 32, 0.5), ("Ti/16", 160, 0.48), ("Ti/16", 224, 0.25)]


@pytest.mark.parametrize(("name", "size", "share"), SHARES)
def test_plain_networks_of_many_patches_see_fewer_of_them_at_first(name, size, share):
    asked = Settings().with_values({"model.model": name, "model.image_size": size})
    assert choose_optimizer(choose_model(asked, facts())[0], sharded=False).train.keep_tokens == share
    stem = asked.with_values({"model.stem": "conv"})
    assert choose_optimizer(choose_model(stem, facts())[0], sharded=False).train.keep_tokens == 0.5
    for own in (asked.with_values({"train.keep_tokens": 0.8}), stem.with_values({"train.keep_tokens": 0.8})):
        assert choose_optimizer(choose_model(own, facts())[0], sharded=False).train.keep_tokens == 0.8


def test_optimizer_and_rate():
    scratch = choose_optimizer(choose_model(Settings(), facts())[0], sharded=False).train
    assert scratch.batch_size == 256
    assert (scratch.optimizer, scratch.keep_tokens) == ("muon", 0.5)
    tuned = choose_optimizer(Settings().with_values({"train.batch_size": 256, "model.start": "x"}), False).train
    assert (tuned.optimizer, tuned.keep_tokens) == ("adamw", 1.0) and tuned.lr < scratch.lr
    assert choose_optimizer(choose_model(Settings(), facts())[0], sharded=True).train.optimizer == "adamw"
    assert (
        usual_rate("head", True, "adamw", 64)
        > usual_rate("lora", True, "adamw", 64)
        > usual_rate("all", True, "adamw", 64)
    )


def test_patches():
    assert [patch_for(size) for size in (8, 28, 32, 64, 128, 224, 12)] == [1, 4, 4, 8, 16, 32, 1]
    assert [size_for(side) for side in (3, 8, 28, 30, 64, 65, 100, 128, 480)] == [8, 8, 28, 28, 64, 64, 96, 128, 128]


def test_size_follows_time_number_and_machine():
    assert width_and_depth(facts(minutes=30.0)) == width_and_depth(facts(images=500, minutes=600.0)) == (128, 4)
    assert width_and_depth(facts(minutes=600.0)) == width_and_depth(facts(device="cuda", images=3000)) == (192, 6)
    assert width_and_depth(facts(device="cuda")) == (384, 12)
    assert width_and_depth(facts(device="cuda", minutes=10.0)) == (192, 6)


def test_numbers_are_not_mirrored():
    assert choose_recipe(Settings(), facts(task="regress", labels=("steering",)), 10)[0].augment.flip == "none"
