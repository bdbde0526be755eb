"""What an evaluation takes is found out in a small part of the time, however long one image takes."""

import math

import pytest

from vitrail.training import step_timing
from vitrail.training.step_timing import TIMED_IMAGES, measure_evaluation


@pytest.mark.parametrize(
    ("image_seconds", "most", "expected"),
    [
        (0.001, 1.2, [1, 4, 16, 64]),
        (0.1, 1.2, [1, 4]),
        (6.0, 1.2, [1]),  # a photo of 12 megapixels with its mask
        (6.0, math.inf, [1, 4, 16, 64]),  # a run that was given epochs has no limit
    ],
)
def test_evaluations_are_timed_on_as_many_images_as_there_is_time_for(monkeypatch, image_seconds, most, expected):
    clock, counts = [0.0], []

    def evaluate(count):
        counts.append(count)
        clock[0] += count * image_seconds

    monkeypatch.setattr(step_timing.time, "perf_counter", lambda: clock[0])
    assert measure_evaluation(evaluate, 1000, bool, most) == pytest.approx(image_seconds)
    assert counts == expected and clock[0] <= max(most, image_seconds)
    assert counts[-1] <= TIMED_IMAGES


def test_there_may_be_fewer_images_than_are_timed():
    counts = []
    measure_evaluation(counts.append, 9, bool, 10.0)
    assert counts == [1, 4, 9]
