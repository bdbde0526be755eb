"""Momentum, temperature and weight decay at given steps, computed by hand."""

from __future__ import annotations

import pytest

from vitrail.pretraining.methods.schedules import cosine, first_momentum, linear


@pytest.mark.parametrize(("step", "momentum"), [(0, 0.996), (250, 0.99658579), (500, 0.998), (1000, 1.0), (2000, 1.0)])
def test_momentum_rises_to_one_along_half_a_cosine(step, momentum):
    """At a quarter of the way: 1 - 0.004 (1 + cos 45 degrees) / 2."""
    assert cosine(step, 1000, 0.996, 1.0) == pytest.approx(momentum, abs=1e-8)


def test_weight_decay_goes_from_four_hundredths_to_four_tenths():
    assert [cosine(step, 4, 0.04, 0.4) for step in (0, 2, 4)] == pytest.approx([0.04, 0.22, 0.4])


@pytest.mark.parametrize(("step", "temperature"), [(0, 0.04), (15, 0.055), (30, 0.07), (31, 0.07), (10**6, 0.07)])
def test_temperature_warms_up_in_a_straight_line(step, temperature):
    assert linear(step, 30, 0.04, 0.07) == pytest.approx(temperature)


def test_a_schedule_without_steps_is_at_its_end():
    assert cosine(0, 0, 0.9, 1.0) == pytest.approx(0.9) and linear(1, 0, 0.04, 0.07) == 0.07


@pytest.mark.parametrize(("steps", "momentum"), [(10, 0.98), (5000, 0.99), (12_500, 0.996), (10**6, 0.996)])
def test_a_short_run_has_a_teacher_with_a_short_memory(steps, momentum):
    """The memory is a fiftieth of the run: 100 of 5000 steps are a momentum of 1 - 1/100."""
    assert first_momentum(steps) == pytest.approx(momentum)
