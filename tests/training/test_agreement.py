"""What a run says of its model, and what `evaluate` says of the model file: the same to four digits, for every task."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import vitrail
from vitrail.commands.make_data import make_data
from vitrail.report.run_record import record
from vitrail.tasks.registry import task_names
from vitrail.training.settings import Settings
from vitrail.training.stages.finish_run import Finished

SMALL: dict[str, Any] = {
    "model.width": 32,
    "model.depth": 1,
    "model.heads": 2,
    "model.patch_size": 8,
    "train.batch_size": 16,
    "data.workers": 0,
}
EPOCHS = {"detect": 3.0}  # boxes take a little longer to be right at all
IMAGES, SIDE = 64, 32


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Data for each task: drawn scenes, and tables of spots whose place is the answer."""
    folder = tmp_path_factory.mktemp("agreement")
    make_data("shapes", folder / "scenes", images=IMAGES, size=SIDE)
    return {
        **dict.fromkeys(("classify", "segment", "detect", "depth"), folder / "scenes"),
        "regress": write_spots(folder / "years", "year", lambda x, y: f"{2000 + 15 * x / SIDE:.3f}"),
        "multilabel": write_spots(
            folder / "sides", "labels", lambda x, y: ";".join(["left"] * int(x < 20) + ["top"] * int(y < 20))
        ),
    }


def write_spots(folder: Path, column: str, target: Any) -> Path:
    folder.mkdir()
    random, rows = np.random.default_rng(0), [f"image,{column}"]
    for number in range(IMAGES):
        pixels = random.integers(0, 60, (SIDE, SIDE, 3)).astype(np.uint8)
        x, y = random.integers(0, SIDE - 6, 2)
        pixels[y : y + 6, x : x + 6] = 230
        Image.fromarray(pixels).save(folder / f"{number}.png")
        rows.append(f"{number}.png,{target(x, y)}")
    (folder / "labels.csv").write_text("\n".join(rows) + "\n")
    return folder


def trained(data: Path, out: Path, task: str, precision: str, epochs: float | None = None) -> Finished:
    changes = {"train.precision": precision, "train.epochs": epochs or EPOCHS.get(task, 2.0)}
    settings = Settings().with_values(SMALL | changes)
    return vitrail.train(data, out, task=task, settings=settings)


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
@pytest.mark.parametrize("task", task_names())
def test_the_run_and_evaluate_agree(
    data: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, task: str, precision: str
) -> None:
    """On a machine that is fast in bfloat16, so that whoever may choose does."""
    monkeypatch.setattr("vitrail.model.precision.computes_bf16", lambda device: True)
    finished = trained(data[task], tmp_path / "run", task, precision)
    result = vitrail.evaluate(tmp_path / "run" / "model.safetensors", data[task], bootstrap=0)
    assert result["metrics"][result["main_metric"]] != 0
    assert result["images"] == finished.results["images"] and result["precision"] == "float32"
    assert result["metrics"] == pytest.approx(finished.results["metrics"], abs=5e-5, rel=5e-5, nan_ok=True)
    batches_of_one = vitrail.evaluate(tmp_path / "run" / "model.safetensors", data[task], bootstrap=0, batch_size=1)
    assert batches_of_one["metrics"] == pytest.approx(result["metrics"], abs=5e-5, rel=5e-5, nan_ok=True)


def test_years_in_bfloat16_are_as_good_as_in_float32(data: dict[str, Path], tmp_path: Path) -> None:
    """The mean and the deviation stand in the last layer: rounded to bfloat16 the answers are 2000, 2008 or 2016."""
    trained(data["regress"], tmp_path / "run", "regress", "bfloat16")
    model = tmp_path / "run" / "model.safetensors"
    exact, mixed = (vitrail.evaluate(model, data["regress"], bootstrap=0, precision=p) for p in ("fp32", "bf16"))
    assert mixed["precision"] == "bfloat16"
    assert mixed["metrics"]["MAE"] == pytest.approx(exact["metrics"]["MAE"], rel=0.02)
    images = sorted(data["regress"].glob("*.png"))
    years = torch.tensor([vitrail.load(model).predict(image, precision="bf16")["values"]["year"] for image in images])
    assert len(years.unique()) > 10


def test_evaluations_on_the_way_are_in_the_precision_that_is_trained_in(
    data: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from vitrail.inference.backends.torch_backend import TorchBackend

    monkeypatch.setattr("vitrail.model.precision.computes_bf16", lambda device: True)
    used, run = [], TorchBackend.__call__
    monkeypatch.setattr(
        TorchBackend, "__call__", lambda backend, *a, **k: used.append(backend.precision) or run(backend, *a, **k)
    )
    trained(data["classify"], tmp_path / "run", "classify", "auto", epochs=1)
    assert used[0] == "bfloat16" and used[-1] == "float32"


def test_the_pictures_of_the_report_are_of_the_answers_that_were_measured(
    data: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from vitrail.inference.backends.torch_backend import TorchBackend

    monkeypatch.setattr("vitrail.model.precision.computes_bf16", lambda device: True)
    finished = trained(data["segment"], tmp_path / "run", "segment", "auto", epochs=1)
    used, run = set(), TorchBackend.__call__
    monkeypatch.setattr(
        TorchBackend, "__call__", lambda backend, *a, **k: used.add(backend.precision) or run(backend, *a, **k)
    )
    assert record(finished).worst and used == {"float32"}
