"""The recipe that is chosen: optimizer, tokens, augmentation."""

import pytest

from tests.training.choices.example_facts import facts
from vitrail.training.choices.model_choice import choose_model
from vitrail.training.choices.recipe_choice import choose_optimizer, choose_recipe, turns_meaning, usual_rate
from vitrail.training.settings import Settings

SHARES = [("mu/4", 16, 0.5), ("Ti/4", 32, 0.5), ("Ti/16", 160, 0.48), ("Ti/16", 224, 0.25)]


def test_pictures_taken_alike_are_not_flipped_and_hardly_cropped():
    few = choose_recipe(Settings(), facts(alike=True), epochs=8)
    assert (few[0].augment.flip, few[0].augment.crop) == ("none", 0.9)
    assert "flips none (those of a class are taken from one side)" in few[1][0]
    digits = choose_recipe(Settings(), facts(alike=True, labels=list("0123456789")), epochs=8)
    assert "flips none:" in digits[1][0]
    settings = Settings().with_values({"augment.flip": "horizontal", "augment.crop": 0.6})
    chosen, why = choose_recipe(settings, facts(alike=True), epochs=8)
    assert (chosen.augment.flip, chosen.augment.crop) == ("horizontal", 0.6) and "one side" not in why[0]
    assert choose_recipe(Settings(), facts(), epochs=8)[0].augment.crop == 0.75


def test_the_more_often_an_image_is_seen_the_more_it_changes():
    few, _ = choose_recipe(Settings(), facts(), 8)
    some, _ = choose_recipe(Settings(), facts(), 30)
    many, why = choose_recipe(Settings(), facts(), 200)
    assert (few.augment.policy, some.augment.policy, many.augment.policy) == ("none", "trivial", "trivial")
    assert few.augment.crop > some.augment.crop > many.augment.crop
    assert few.train.cutmix == 0 and many.train.cutmix > 0 and "cutmix" in why[0]
    number, _ = choose_recipe(Settings(), facts(task="regress"), 200)  # may be a place, a size, a count, a brightness
    assert number.train.mixup == 0 and number.augment.crop == 1 and number.augment.erase == 0
    assert (number.augment.policy, number.augment.flip) == ("none", "none")
    kept = Settings().with_values({"augment.policy": "none", "train.mixup": 0.0, "augment.erase": 0.0})
    assert choose_recipe(kept, facts(), 200)[0].augment.policy == "none"


@pytest.mark.parametrize(
    ("labels", "flipped_means_other"),
    [
        ([str(n) for n in range(10)], True), (["a", "b", "c"], True), (["turn left", "turn right"], True),
        (["left_hand", "cup"], True), (["cat", "dog"], False), (["bright", "dark"], False), (["x-ray", "ct"], False),
    ],
)  # fmt: skip
def test_flips_are_off_where_they_change_the_label(labels, flipped_means_other):
    assert turns_meaning(labels) is flipped_means_other
    flip = choose_recipe(Settings(), facts(labels=labels), 10)[0].augment.flip
    assert flip == ("none" if flipped_means_other else "horizontal")


@pytest.mark.parametrize(
    ("task", "labels", "named", "flip"),
    [
        ("segment", ["1", "2", "3"], False, "horizontal"), ("segment", ["1", "2", "3"], True, "horizontal"),
        ("segment", ["left lung", "heart"], True, "none"), ("detect", ["0", "1"], False, "horizontal"),
        ("detect", ["left shoe"], True, "none"), ("classify", ["1", "2", "3"], True, "none"),
        ("multilabel", ["a", "b"], True, "none"),
    ],
)  # fmt: skip
def test_only_names_of_whole_pictures_that_somebody_gave_are_digits(task, labels, named, flip):
    assert choose_recipe(Settings(), facts(task=task, labels=labels, named=named), 10)[0].augment.flip == flip


@pytest.mark.parametrize(("name", "size", "share"), SHARES)
def test_plain_networks_of_many_patches_see_fewer_of_them_at_first(name, size, share):
    settings = Settings().with_values({"model.model": name, "model.image_size": size})
    assert choose_optimizer(choose_model(settings, facts())[0], sharded=False).train.keep_tokens == share
    stem = settings.with_values({"model.stem": "conv"})
    assert choose_optimizer(choose_model(stem, facts())[0], sharded=False).train.keep_tokens == 0.5
    for own in (settings.with_values({"train.keep_tokens": 0.8}), stem.with_values({"train.keep_tokens": 0.8})):
        assert choose_optimizer(choose_model(own, facts())[0], sharded=False).train.keep_tokens == 0.8


def test_optimizer_and_rate():
    scratch = choose_optimizer(choose_model(Settings(), facts())[0], sharded=False).train
    assert scratch.batch_size == 256
    assert (scratch.optimizer, scratch.keep_tokens) == ("muon", 0.5)
    tuned = choose_optimizer(Settings().with_values({"train.batch_size": 256, "model.start": "x"}), False).train
    assert (tuned.optimizer, tuned.keep_tokens) == ("adamw", 1.0) and tuned.lr < scratch.lr
    assert choose_optimizer(choose_model(Settings(), facts())[0], sharded=True).train.optimizer == "adamw"
    assert usual_rate("head", True, "adamw", 64) > usual_rate("all", True, "adamw", 64)
    assert usual_rate("all", True, "adamw", 32) == pytest.approx(5e-4, rel=0.02)


def test_a_tuned_classifier_is_kept_from_learning_by_heart():
    tuned = Settings().with_values({"model.start": "x"})
    assert choose_recipe(tuned, facts(), epochs=8)[0].augment.crop == 0.2
    assert choose_recipe(tuned, facts(), epochs=8)[0].train.drop_path == 0.1
    assert choose_recipe(tuned, facts(task="segment"), epochs=8)[0].augment.crop == 0.75
    assert choose_recipe(tuned, facts(task="segment"), epochs=8)[0].train.drop_path == 0.0
    assert choose_recipe(tuned, facts(task="regress"), epochs=8)[0].augment.crop == 1.0


def test_numbers_are_not_mirrored():
    assert choose_recipe(Settings(), facts(task="regress", labels=("steering",)), 10)[0].augment.flip == "none"
