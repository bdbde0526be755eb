"""A new head is fitted to frozen features before fine-tuning."""

import json

import pytest
import torch
from safetensors.torch import load_file

import vitrail
from tests.training.running import write_pictures
from vitrail.search.linear_probe import fit_probe
from vitrail.training import training_run
from vitrail.training.settings import Settings
from vitrail.training.stages import probe_head


@pytest.fixture(scope="module")
def first(tmp_path_factory):
    folder = tmp_path_factory.mktemp("first")
    settings = Settings().with_values({"model.model": "mu/4", "model.image_size": 16, "data.workers": 0})
    vitrail.train(write_pictures(folder / "data"), folder / "run", epochs=4, settings=settings)
    return folder / "run" / "model.safetensors"


@pytest.mark.parametrize("probe", [True, False])
def test_fine_tuning_starts_from_a_good_head(tmp_path, first, probe):
    """At a rate at which nothing is learnt, so that only the probe can have done it."""
    data = write_pictures(tmp_path / "data", classes=("ant", "bee", "cow"))
    values = {"train.probe": probe, "train.lr": 1e-9, "data.workers": 0, "train.epochs": 1.0}
    vitrail.train(data, tmp_path / "run", start=first, settings=Settings().with_values(values))
    rows = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    losses = [row["validation"]["loss"] for row in rows if "validation" in row]
    assert (max(losses) < 0.1) is probe


def test_the_probe_takes_a_part_of_the_minutes(tmp_path, first, monkeypatch):
    """Of features that take long, those of the first batch are enough: a run of minutes must have time for steps."""
    seen = []
    monkeypatch.setattr(probe_head, "SHARE", 0.0)
    monkeypatch.setattr(probe_head, "fit_probe", lambda *given: seen.append(given[:2]) or fit_probe(*given))
    monkeypatch.setattr("vitrail.training.validate.BATCH", 8)
    data = write_pictures(tmp_path / "data", classes=("ant", "bee", "cow"))
    settings = Settings().with_values({"data.workers": 0})
    vitrail.train(data, tmp_path / "run", start=first, minutes=0.05, settings=settings)
    ((features, targets),) = seen
    assert len(features) == len(targets) == 8


def test_a_run_that_is_resumed_before_its_first_state_has_the_same_head(tmp_path, first, monkeypatch):
    data = write_pictures(tmp_path / "data", classes=("ant", "bee", "cow"))
    settings = Settings().with_values({"data.workers": 0, "train.epochs": 1.0})
    vitrail.train(data, tmp_path / "whole", start=first, settings=settings)

    def killed(*given):
        raise KeyboardInterrupt

    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(training_run, "run_loop", killed)
        vitrail.train(data, tmp_path / "run", start=first, settings=settings)
    monkeypatch.setattr(probe_head, "fit_to_training_images", None)  # how many images suffice is a matter of time
    vitrail.train(data, tmp_path / "run", resume=True)
    whole, resumed = (load_file(tmp_path / run / "model.safetensors") for run in ("whole", "run"))
    assert all(torch.equal(whole[name], resumed[name]) for name in whole)


def test_a_head_that_was_loaded_is_kept(tmp_path, first, monkeypatch):
    monkeypatch.setattr(probe_head, "fit_to_training_images", None)  # nobody calls it
    values = {"train.lr": 1e-9, "data.workers": 0, "train.epochs": 1.0}
    data = write_pictures(tmp_path / "data")
    run = vitrail.train(data, tmp_path / "run", start=first, settings=Settings().with_values(values))
    assert run.results["metrics"]["accuracy"] == 1.0
