"""The image size follows from the time there is."""

import dataclasses

import pytest
import torch

from tests.training.choices.example_facts import facts
from vitrail.model.config import ViTConfig
from vitrail.training.choices.model_choice import Choice, choose_model, config_of
from vitrail.training.choices.size_choice import (
    ENOUGH_EPOCHS,
    StepCost,
    candidate_configs,
    candidate_sizes,
    fit_size_to_time,
    fit_tuned_size_to_time,
    measure_step_cost,
    size_for_time,
    small_config,
    tuned_sizes,
)
from vitrail.training.settings import Settings

HEAD = {"classes": 3, "head": "mask_decoder"}


def test_candidates_keep_the_aspect_in_whole_patches():
    sizes = candidate_sizes(facts(task="segment", height=360, width=480), 16)
    assert sizes[0] == (352, 480) and sizes == sorted(sizes, reverse=True)
    assert all(height % 16 == width % 16 == 0 for height, width in sizes)
    assert all(width / height == pytest.approx(480 / 360, rel=0.1) for height, width in sizes)
    assert candidate_sizes(facts(task="segment", height=64, width=64), 8) == [(64, 64)]
    assert candidate_sizes(facts(task="segment", height=3000, width=4000), 16)[0] == (384, 512)


@pytest.mark.parametrize(
    ("seconds", "size"), [(10_000, (480, 480)), (2000, (240, 240)), (800, (160, 160)), (1, (160, 160))]
)
def test_enough_epochs_come_first_then_pixels(seconds, size):
    """100 images, which take 4, 1 and 0.5 seconds each at the three sizes."""
    timed = size_for_time([(480, 480), (240, 240), (160, 160)], [4.0, 1.0, 0.5], 100, seconds, [ENOUGH_EPOCHS] * 3)
    assert timed.size == size
    assert timed.epochs >= ENOUGH_EPOCHS or size == (160, 160)


@pytest.mark.parametrize("task", ["segment", "detect", "depth", "regress"])
def test_more_minutes_never_mean_fewer_pixels(task):
    sides = []
    for minutes in (1.0, 5.0, 30.0, 240.0):
        known = facts(task=task, height=512, width=512, images=1200, minutes=minutes, objects=3 * (task == "detect"))
        choice = choose_model(Settings(), known)
        config = small_config(config_of(choice.settings, HEAD))
        assert max(config.image_size) <= 160
        cost = StepCost(1 / 2e10, 0.05)  # a machine with 20 billion multiply-adds a second
        fitted = fit_size_to_time(Settings(), known, choice, candidate_configs(Settings(), known, config), cost)
        sides.append(fitted.settings.model.image_size)
        reasons = [reason for reason in fitted.reasons if reason.startswith("size:")]
        assert len(reasons) == (sides[-1] < 512)
        assert all("minutes would allow 512 x 512 px" in reason for reason in reasons)
    assert sides == sorted(sides) and sides[0] < sides[-1] == 512


@pytest.mark.parametrize("task", ["classify", "multilabel"])
def test_classes_of_photos_are_seen_larger_where_the_minutes_suffice(task):
    sides, batches = [], []
    for minutes in (1.0, 8.0, 60.0, 600.0):
        known = facts(task=task, height=480, width=640, images=1200, minutes=minutes)
        choice = choose_model(Settings(), known)
        config = config_of(choice.settings, {"classes": 2})
        configs = candidate_configs(Settings(), known, config)
        assert [one.image_size[0] for one in configs] == [224, 128]
        assert all(one.image_size[0] % one.patch_size[0] == 0 and 49 <= one.tokens <= 64 for one in configs)
        fitted = fit_size_to_time(Settings(), known, choice, configs, StepCost(1 / 1e10, 0.05))
        sides.append(fitted.settings.model.image_size)
        batches.append(fitted.settings.train.batch_size)
        reasons = [reason for reason in fitted.reasons if reason.startswith("size:")]
        assert len(reasons) == (sides[-1] < 224)
        assert config_of(fitted.settings, {"classes": 2}).image_size == (sides[-1], sides[-1])
    assert sides == sorted(sides) and sides[0] == 128 and sides[-1] == 224
    assert max(batches) <= 64


@pytest.mark.parametrize(
    ("height", "width", "settings", "sides"),
    [(100, 640, {}, [96]), (128, 128, {}, [128]), (200, 300, {}, [128]), (32, 32, {}, [32]),
     (224, 300, {}, [224, 128]), (480, 640, {"model.patch_size": 16}, [224, 128]),
     (480, 640, {"model.patch_size": 64}, [128])],
)  # fmt: skip
def test_photos_are_not_enlarged_and_patches_that_were_asked_for_must_fit(height, width, settings, sides):
    known, own = facts(height=height, width=width, minutes=5.0), Settings().with_values(settings)
    config = config_of(choose_model(own, known).settings, {"classes": 2})
    assert [one.image_size[0] for one in candidate_configs(own, known, config)] == sides


def test_a_published_model_is_fine_tuned_at_its_size_or_a_smaller_one():
    assert tuned_sizes(ViTConfig()) == [(224, 224), (160, 160), (128, 128)]
    assert tuned_sizes(ViTConfig(image_size=518, patch_size=14))[-1] == (294, 294)
    assert tuned_sizes(ViTConfig(image_size=(112, 224), patch_size=16))[-1] == (64, 128)
    assert tuned_sizes(ViTConfig(image_size=32, patch_size=4)) == [(32, 32)]
    choice = Choice(Settings().with_values({"train.batch_size": 32}), ())
    small = small_config(ViTConfig())
    assert small.image_size == (160, 160)
    cost = StepCost(1 / 2e10, 0.0)
    sides = []
    for minutes in (1.0, 350.0, 400.0, 4000.0):
        fitted = fit_tuned_size_to_time(facts(images=3000, minutes=minutes), choice, ViTConfig(), cost)
        sides.append(fitted.settings.model.image_size or 224)
        assert len(fitted.reasons) == (sides[-1] < 224)
    assert sides == sorted(sides) and sides[0] == 128 and sides[-1] == 224 and len(set(sides)) > 2
    taught = dataclasses.replace(cost, teacher_seconds=10.0)  # what a teacher takes counts, and no size makes it less
    fitted = fit_tuned_size_to_time(facts(images=3000, minutes=4000.0), choice, ViTConfig(), taught)
    assert fitted.settings.model.image_size == 128


@pytest.mark.parametrize("head", [HEAD, {"classes": 1, "head": "mask_linear"}, {"classes": 2, "head": "box_decoder"}])
def test_a_step_is_measured_with_its_optimizer(head):
    """Whatever the head gives while it trains: one tensor, or a box decoder's several."""
    config = small_config(config_of(choose_model(Settings(), facts(task="segment", minutes=1.0)).settings, head))
    cost = measure_step_cost(config, torch.device("cpu"), "float32", muon=True)
    assert cost.multiply_add_seconds > 0 and cost.optimizer_seconds > 0
    larger = config.replace(image_size=(320, 320))
    assert cost.per_image(larger, 4) > cost.per_image(config, 4) > cost.per_image(config, 400)
