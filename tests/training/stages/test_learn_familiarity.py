"""A run keeps what tells strangers, within its time, and is otherwise the same run."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file

import vitrail
from tests.training.running import write_pictures
from vitrail.commands.train import train
from vitrail.training.plan import Plan
from vitrail.training.settings import Settings
from vitrail.training.stages import learn_familiarity
from vitrail.training.stages.make_plan import REPORT
from vitrail.weights.familiarity.kept_vectors import UNFAMILIAR
from vitrail.weights.load import load

FAST = {
    "model.model": "mu/4",
    "model.image_size": 16,
    "model.stem": "conv",
    "train.epochs": 3.0,
    "train.batch_size": 16,
    "data.workers": 0,
}


def settings(**changes: object) -> Settings:
    return Settings().with_values({**FAST, **{name.replace("__", "."): value for name, value in changes.items()}})


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """150 pictures: 30 of them are held out."""
    return write_pictures(tmp_path_factory.mktemp("familiar") / "data", each=50)


def test_a_trained_model_tells_strangers(tmp_path: Path, data: Path) -> None:
    finished = train(data, tmp_path / "run", settings=settings())
    model = vitrail.load(tmp_path / "run" / "model.safetensors")
    assert model.familiarity is not None
    kept = finished.checkpoint.provenance["training"]["images"]
    assert len(model.familiarity.vectors) == kept and len(model.familiarity.held_out) == finished.results["images"]
    held_out = [item.path for item in finished.items]
    answers = model.predict(held_out)
    assert np.mean([answer["familiar"] for answer in answers]) >= 1 - UNFAMILIAR
    black = Image.new("RGB", (16, 16))
    assert model.predict(black)["familiar"] is False
    assert vitrail.evaluate(model, data)["familiarity"]["share"] <= UNFAMILIAR
    page = (tmp_path / "run" / "report.html").read_text("utf-8")
    assert "Pictures unlike those it learnt from" in page and "The least familiar held-out pictures" in page


def test_the_weights_are_those_of_a_run_that_keeps_nothing(tmp_path: Path, data: Path) -> None:
    for name, most in {"kept": 20, "none": 0}.items():
        train(data, tmp_path / name, settings=settings(train__epochs=1.0, data__familiarity_images=most))
    kept, none = (tmp_path / name / "model.safetensors" for name in ("kept", "none"))
    left, right = load_file(kept), load_file(none)
    assert all(torch.equal(left[name], right[name]) for name in left)
    familiarity = load(kept).familiarity
    assert familiarity is not None and len(familiarity.vectors) == 20
    assert load(none).familiarity is None
    assert "Pictures unlike" not in (tmp_path / "none" / "report.html").read_text("utf-8")


def test_few_held_out_pictures_tell_nothing(tmp_path: Path, pictures: Path) -> None:
    train(pictures, tmp_path / "run", settings=settings(train__epochs=1.0))
    assert load(tmp_path / "run" / "model.safetensors").familiarity is None


def test_a_test_part_leaves_the_threshold_to_the_validation_part(tmp_path: Path) -> None:
    """Numbers are not calibrated, so their validation images are run for this alone."""
    rows = ["image,size,split"]
    for number, path in enumerate(sorted(write_pictures(tmp_path / "data", each=40).rglob("*.png"))):
        split = "test" if number % 4 == 0 else "val" if number % 4 == 1 else "train"
        rows.append(f"{path.relative_to(tmp_path / 'data')},{np.asarray(Image.open(path)).mean()},{split}")
    (tmp_path / "data" / "labels.csv").write_text("\n".join(rows))
    train(tmp_path / "data" / "labels.csv", tmp_path / "run", settings=settings(train__epochs=1.0))
    familiarity = load(tmp_path / "run" / "model.safetensors").familiarity
    assert familiarity is not None
    assert (len(familiarity.vectors), len(familiarity.held_out)) == (60, 30)


def test_a_run_of_minutes_keeps_what_the_time_suffices_for(
    tmp_path: Path, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(learn_familiarity, "SHARE", 0.0)
    monkeypatch.setattr("vitrail.training.validate.BATCH", 16)
    train(data, tmp_path / "run", settings=settings(train__epochs=None, train__minutes=0.1))
    familiarity = load(tmp_path / "run" / "model.safetensors").familiarity
    assert familiarity is not None and len(familiarity.vectors) == 32  # two batches: 20 pictures are needed


def test_its_time_is_kept_free_and_does_not_grow_on_a_slow_machine(tmp_path: Path, data: Path) -> None:
    """It stops by the clock. A busy core once made 5 seconds for it 22, and a run of 3 minutes ended 19 s early."""
    train(data, tmp_path / "run", settings=settings(train__epochs=None, train__minutes=0.2))
    timing = Plan.read(tmp_path / "run" / "plan.json").timing
    assert timing is not None and timing.report == pytest.approx(REPORT + learn_familiarity.SHARE * 12)
    slow = timing.scaled(4.0, image=4 * timing.image)
    assert slow.ending - timing.report == pytest.approx(4 * (timing.ending - timing.report))


def test_wrong_labels_are_in_the_report(tmp_path: Path, data: Path, tiny: Callable[..., Path]) -> None:
    folder = write_pictures(tmp_path / "data", each=50)
    (folder / "cat" / "7.png").rename(folder / "dog" / "a cat.png")
    train(folder, tmp_path / "run", settings=settings(train__epochs=2.0))
    page = (tmp_path / "run" / "report.html").read_text("utf-8")
    assert "Labels that may be wrong" in page and "dog/a cat.png" in page and "cat fits better" in page
