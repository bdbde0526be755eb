"""The last measure takes all images, or as many as there is time for."""

from types import SimpleNamespace
from typing import Any

import pytest

from vitrail.training.loop import TrainState
from vitrail.training.plan import Plan, StepTiming, length_of
from vitrail.training.settings import Settings
from vitrail.training.stages.finish_run import GRACE, LATE, calibration_in_time, images_in_time
from vitrail.training.stages.learn_familiarity import SHARE
from vitrail.training.stages.make_plan import FEWEST_FINAL, REPORT, SMALLEST_FINAL, FinalCost


@pytest.mark.parametrize(
    ("left", "count"),
    [
        (20.0, 1000),  # there is time for all: 10 s
        (9.0, 1000),  # almost: 1 s late, of 100, is better than a sample
        (8.9, 890),
        (0.0, SMALLEST_FINAL),
        (-50.0, SMALLEST_FINAL),
    ],
)
def test_a_sample_is_measured_rather_than_overrun_by_much(left: float, count: int) -> None:
    """1,000 test images, of which each takes 10 ms in float32, and 100 s in all; 50 images are for the calibration."""
    assert GRACE == 0.01
    images: Any = SimpleNamespace(
        task=SimpleNamespace(dense=False),
        settings=Settings().with_values({"train.minutes": 100 / 60}),
        held_out={"test": range(1000)},
        measured_split="test",
        validation_indices=range(50),
        calibration_images=50,
    )
    timing = StepTiming(few_tokens=1.0, all_tokens=1.0, evaluation=0.25, final_slower=2.0, image=0.005)
    plan = Plan(lengths=(length_of(10, 0.7, 0.05),), data="", started="", command="", deadline=100.0, timing=timing)
    done: Any = SimpleNamespace(seconds=100.0 - left - REPORT - 50 * 0.01 - SHARE * 100 - 1e-6)
    assert images_in_time(images, plan, done) == count


@pytest.mark.parametrize(
    ("image_seconds", "dense", "count"),
    [(0.04, False, SMALLEST_FINAL), (0.2, False, 25), (0.2, True, 12), (6.0, True, FEWEST_FINAL)],
)
def test_a_hundred_images_that_take_long_are_no_reason_to_overrun(
    image_seconds: float, dense: bool, count: int
) -> None:
    """100 s are over. A hundred photos of 12 megapixels with masks would take ten minutes more."""
    images: Any = SimpleNamespace(
        task=SimpleNamespace(dense=dense),
        settings=Settings().with_values({"train.minutes": 100 / 60}),
        held_out={"val": range(1000)},
        measured_split="val",
        calibration_images=0,
    )
    timing = StepTiming(few_tokens=1.0, all_tokens=1.0, evaluation=1.0, image=image_seconds)
    plan = Plan(lengths=(length_of(10, 0.7, 0.05),), data="", started="", command="", deadline=100.0, timing=timing)
    assert images_in_time(images, plan, TrainState(seconds=100.0)) == count


@pytest.mark.parametrize(
    ("image_seconds", "left", "calibration", "count"),
    [
        (0.01, 30.0, 100, 1000),  # there is time for all
        (0.2, 30.0, 66, 84),  # about a half of the time for each
        (1.0, 30.0, FEWEST_FINAL, 13),
        (6.0, 30.0, FEWEST_FINAL, FEWEST_FINAL),
        (0.2, 0.0, FEWEST_FINAL, 12),
    ],
)
def test_the_images_that_are_calibrated_by_are_no_reason_to_overrun(
    image_seconds: float, left: float, calibration: int, count: int
) -> None:
    """A test part beside them. A hundred photos of which each takes a second made 100 seconds 180."""
    images: Any = SimpleNamespace(
        task=SimpleNamespace(dense=True),
        settings=Settings().with_values({"train.minutes": 100 / 60}),
        held_out={"test": range(1000)},
        measured_split="test",
        validation_indices=range(4),
        calibration_images=100,
    )
    timing = StepTiming(few_tokens=1.0, all_tokens=1.0, evaluation=1.0, final_slower=2.0, image=image_seconds / 2)
    plan = Plan(lengths=(length_of(10, 0.7, 0.05),), data="", started="", command="", deadline=100.0, timing=timing)
    done = TrainState(seconds=100.0 - left - REPORT - SHARE * 100)
    chosen = calibration_in_time(images, plan, done), images_in_time(images, plan, done)
    assert chosen == (calibration, count)
    taken = calibration * image_seconds + FinalCost(image_seconds, image_seconds).seconds(count)
    fewest = FEWEST_FINAL * image_seconds + FinalCost(image_seconds, image_seconds).seconds(FEWEST_FINAL)
    assert taken <= left + LATE * 100 + fewest
