"""How the time is divided between steps, evaluations and the last measure, however long one image takes."""

import pytest

from vitrail.tasks.task import WORST
from vitrail.training.plan import LARGEST_ENDING, StepTiming, without_ending
from vitrail.training.plan import SHARE as PART_OF_TIME
from vitrail.training.stages.learn_familiarity import SHARE
from vitrail.training.stages.make_plan import (
    FEWEST_EVALUATIONS,
    FEWEST_FINAL,
    REPORT,
    SMALLEST_DENSE_SAMPLE,
    SMALLEST_FINAL,
    SMALLEST_SAMPLE,
    FinalCost,
    final_sample,
    quick_sample,
)


@pytest.mark.parametrize("minutes", [2, 4, 10, 30, 240])
@pytest.mark.parametrize("image_seconds", [0.001, 0.01, 0.05, 0.127, 0.5, 3.0])
@pytest.mark.parametrize("smallest", [SMALLEST_DENSE_SAMPLE, SMALLEST_SAMPLE])
def test_a_run_of_minutes_is_evaluated_six_times(minutes, image_seconds, smallest):
    """Where an evaluation takes long it takes fewer images. What is left of the time for it is less than the minutes:
    1,000 masks, of which each took 0.127 s, were once evaluated four times in 10 minutes."""
    budget = 60.0 * minutes
    ending = REPORT + SHARE * budget + image_seconds * final_sample(FinalCost(image_seconds), budget, 1000)
    left = without_ending(budget - 10, ending)
    sample = quick_sample(image_seconds, left, 1000, smallest)
    timing = StepTiming(few_tokens=0.1, all_tokens=0.1, evaluation=image_seconds * sample)
    six_of_the_smallest = FEWEST_EVALUATIONS * image_seconds * smallest <= PART_OF_TIME * left
    assert timing.evaluations(left) >= (FEWEST_EVALUATIONS if six_of_the_smallest else 2)
    assert six_of_the_smallest or sample == smallest


@pytest.mark.parametrize(
    ("image_seconds", "minutes", "images"),
    [
        (0.001, 2, 1000),  # all
        (0.1, 2, 180),  # what 15 % of the time suffices for
        (0.25, 2, SMALLEST_FINAL),
        (1.0, 2, 30),  # 100 would take most of the time
        (6.0, 2, FEWEST_FINAL),  # photos of 12 megapixels with masks
        (6.0, 60, SMALLEST_FINAL),
    ],
)
def test_the_last_measure_leaves_most_of_the_time_for_learning(image_seconds, minutes, images):
    assert final_sample(FinalCost(image_seconds), 60.0 * minutes, 1000) == images
    assert final_sample(FinalCost(image_seconds), 60.0 * minutes, 5) == 5


@pytest.mark.parametrize("drawn", [0.0, 0.5])
@pytest.mark.parametrize("images", [1, WORST - 1, WORST, WORST + 1, 500])
def test_the_worst_masks_are_made_once_more_to_be_drawn(images, drawn):
    cost = FinalCost(1.0, drawn)
    assert cost.seconds(images) == images + drawn * min(images, WORST)
    assert cost.images(cost.seconds(images) + 1e-6) == images


def test_a_long_end_leaves_steps_to_be_made():
    """It is made shorter then; the first plan once had a single step."""
    assert without_ending(100.0, 300.0) == pytest.approx(100 * (1 - LARGEST_ENDING))
    assert without_ending(-5.0, 10.0) == -5.0
