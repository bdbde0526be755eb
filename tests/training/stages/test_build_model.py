"""The model at its start: a published one is fine-tuned at the size that the minutes suffice for."""

import pytest

import vitrail
from tests.training.running import write_pictures
from vitrail.training.choices.size_choice import StepCost
from vitrail.training.settings import Settings
from vitrail.training.stages import build_model


@pytest.fixture(scope="module")
def first(tmp_path_factory):
    folder = tmp_path_factory.mktemp("first")
    settings = Settings().with_values({"model.model": "mu/28", "model.image_size": 196, "data.workers": 0})
    vitrail.train(write_pictures(folder / "data"), folder / "run", epochs=1, settings=settings)
    return folder / "run" / "model.safetensors"


@pytest.mark.parametrize(
    ("multiply_add_seconds", "more", "side"),
    [
        (1.0, {}, 112),
        (1e-18, {}, 196),
        (1.0, {"model.image_size": 168}, 168),
        (1.0, {"model.train_only": "head"}, 196),
        (1.0, {"train.minutes": None, "train.epochs": 1.0}, 196),
    ],
)
def test_fine_tuning_takes_the_size_that_the_minutes_suffice_for(
    tmp_path, first, monkeypatch, multiply_add_seconds, more, side
):
    """Where steps take long, the smallest; where they do not, where it was asked for, or without minutes: as it is."""
    monkeypatch.setattr(build_model, "measure_step_cost", lambda *given: StepCost(multiply_add_seconds, 0.0))
    data = write_pictures(tmp_path / "data", classes=("ant", "bee", "cow"))
    settings = Settings().with_values({"data.workers": 0, "train.minutes": 0.03} | more)
    run = vitrail.train(data, tmp_path / "run", start=first, settings=settings)
    assert run.checkpoint.config.image_size == run.checkpoint.preprocessing.size == (side, side)
    assert any(reason.startswith(f"size: {side} x {side} px") for reason in run.plan.reasons) is (side == 112)
    again = vitrail.load(tmp_path / "run" / "model.safetensors")
    assert again.config.image_size == (side, side)
    measured = vitrail.evaluate(tmp_path / "run" / "model.safetensors", data, bootstrap=0)
    assert measured["metrics"]["accuracy"] == pytest.approx(run.results["metrics"]["accuracy"])
