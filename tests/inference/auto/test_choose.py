"""`auto`: the fastest engine that gives torch's answers, chosen once, remembered, and said in a line."""

from __future__ import annotations

import importlib
import json
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import vitrail
from vitrail.cli import main
from vitrail.commands.predict import run_predict
from vitrail.errors import VitrailError
from vitrail.graphs.no_telemetry import SENDER
from vitrail.inference.auto import candidates as candidates_module
from vitrail.inference.auto import choose as choose_module
from vitrail.inference.auto import crash_record, measure_engines, named_engine
from vitrail.inference.auto.candidates import candidates
from vitrail.inference.auto.choice_record import Choice, choices_of
from vitrail.inference.auto.crash_record import crashes_of
from vitrail.inference.auto.measure_engines import Measurement
from vitrail.inference.auto.timing import median_seconds
from vitrail.inference.backends import openvino_run
from vitrail.inference.backends.backend import BACKENDS
from vitrail.inference.backends.graph_cache import fingerprint
from vitrail.inference.child.run_in_child import run_in_child
from vitrail.inference.engine import Engine, open_model
from vitrail.weights.checkpoint import Checkpoint

MEASURE = measure_engines.measure
HERE = "tests.inference.auto.test_choose"
PICTURES = [np.random.default_rng(seed).integers(0, 256, (40, 40, 3), np.uint8) for seed in range(6)]


class Exact:
    """A backend that gives torch's answers."""

    name, captures, precision, device = "exact", frozenset[str](), "float32", torch.device("cpu")
    shift = 0.0  # of the first output

    def __init__(self, checkpoint: Checkpoint) -> None:
        self.checkpoint = checkpoint

    @classmethod
    def load(cls, checkpoint: Checkpoint, *, device: str, precision: str, pictures: Any = None) -> Any:
        return cls(checkpoint)

    @torch.no_grad()
    def __call__(self, images: Tensor, capture: Any = None) -> Tensor:
        outputs = self.checkpoint.model(images)
        outputs[:, 0] += self.shift
        return outputs


class Wrong(Exact):
    """One that always gives the first label."""

    name, shift = "wrong", 1000.0


@pytest.fixture(autouse=True)
def engines(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> dict[str, float]:
    """Two engines beside torch, and how long each takes: a test changes it."""
    monkeypatch.setenv("VITRAIL_CACHE", str(tmp_path / "cache"))
    seconds = {"torch": 0.4, "exact": 0.2, "wrong": 0.1}
    monkeypatch.setitem(BACKENDS, "exact", f"{HERE}:Exact")
    monkeypatch.setitem(BACKENDS, "wrong", f"{HERE}:Wrong")
    needs: dict[str, tuple[str, ...]] = {"exact": (), "wrong": ()}
    monkeypatch.setattr(candidates_module, "NEEDS", needs)
    monkeypatch.setattr(choose_module, "NEEDS", needs)
    monkeypatch.setattr(measure_engines, "run_in_child", lambda function, *arguments: function(*arguments))
    monkeypatch.setattr(
        measure_engines, "median_seconds", lambda runs: {name: seconds[name.partition(" ")[0]] for name in runs}
    )
    return seconds


def said(capsys: pytest.CaptureFixture[str]) -> str:
    return capsys.readouterr().err


def test_the_fastest_that_agrees(save: Callable[..., Path], capsys: pytest.CaptureFixture[str]) -> None:
    path = save()
    engine = Engine.open(path, engine="auto", calibration=PICTURES)
    assert engine.backend.name == "exact"
    line = said(capsys)
    assert "engine auto: exact in float32, 2.00 times as fast as torch in float32: the same answer for 6 of 6" in line
    assert "(6 pictures at hand)" in line and line.count("engine auto") == 1
    (choice,) = choices_of(fingerprint(engine.checkpoint))
    assert choice.engine == "exact" and choice.size == (32, 32) and choice.pictures == "6 pictures at hand"
    assert choice.refused["wrong in float32"].startswith("4.00 times as fast, but the same answer for ")
    assert choice.milliseconds["torch in float32"] == 400


def test_a_choice_is_remembered(
    save: Callable[..., Path], capsys: pytest.CaptureFixture[str], engines: dict[str, float]
) -> None:
    path = save()
    Engine.open(path, engine="auto", calibration=PICTURES)
    said(capsys)
    engines["torch"] = 0.01  # nobody measures again
    again = Engine.open(path, engine="auto")  # and pictures are not needed
    assert again.backend.name == "exact"
    assert "engine auto: exact in float32, 2.00 times as fast" in (line := said(capsys)) and "measured here on" in line


def test_a_choice_on_few_pictures_is_made_again_on_more(
    save: Callable[..., Path], capsys: pytest.CaptureFixture[str]
) -> None:
    path = save()
    for count, words in [(1, "(1 picture at hand)"), (1, "measured here on"), (6, "(6 pictures at hand)")]:
        Engine.open(path, engine="auto", calibration=PICTURES[:count])
        assert words in said(capsys)
    many = [picture + np.uint8(shift) for shift in range(6) for picture in PICTURES]
    Engine.open(path, engine="auto", calibration=many)
    assert "(36 pictures at hand)" in said(capsys)
    Engine.open(path, engine="auto", calibration=many * 2)  # so many are enough
    assert "measured here on" in said(capsys)


@pytest.mark.parametrize("change", ["cpu", "version", "batch", "weights", "gone", "damaged"])
def test_what_it_depends_on_makes_it_choose_again(
    save: Callable[..., Path],
    tmp_path: Path,
    change: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    checkpoint = open_model(save())
    assert Engine.open(checkpoint, engine="auto", calibration=PICTURES).backend.name == "exact"
    said(capsys)
    batch_size = None
    if change in ("cpu", "version"):
        machine = choose_module.machine() | {change: "another"}
        monkeypatch.setattr(choose_module, "machine", lambda: machine)
    elif change == "batch":
        batch_size = 1
    elif change == "weights":
        next(checkpoint.model.parameters()).data[0, 0] += 0.001
    elif change == "gone":
        monkeypatch.setattr(candidates_module, "NEEDS", {"wrong": ()})
    else:
        for record in (tmp_path / "cache" / "engines").iterdir():
            record.write_text(record.read_text()[:-20])
    engine = Engine.open(checkpoint, engine="auto", calibration=PICTURES[:2], batch_size=batch_size)
    assert "2 pictures at hand" in said(capsys)
    assert engine.backend.name == ("torch" if change == "gone" else "exact")


def test_torch_stays_where_nothing_is_faster(
    save: Callable[..., Path], capsys: pytest.CaptureFixture[str], engines: dict[str, float]
) -> None:
    engines["exact"] = engines["torch"] / 1.02  # within the noise
    engine = Engine.open(save(), engine="auto", calibration=PICTURES)
    assert (engine.backend.name, engine.backend.precision) == ("torch", "float32")
    assert "engine auto: torch in float32: no other engine here is faster and gives the same answers" in said(capsys)


def test_without_pictures_torch_stays(save: Callable[..., Path], capsys: pytest.CaptureFixture[str]) -> None:
    engine = Engine.open(save(), engine="auto")
    assert engine.backend.name == "torch"
    assert "there are no pictures to check a faster engine on: give a folder" in said(capsys)


def test_without_the_packages_a_line_says_what_they_bring(
    save: Callable[..., Path], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    needs = {"openvino": ("a_package_that_is_not_there",)}
    monkeypatch.setattr(candidates_module, "NEEDS", needs)
    monkeypatch.setattr(choose_module, "NEEDS", needs)
    assert Engine.open(save(), engine="auto", calibration=PICTURES).backend.name == "torch"
    line = said(capsys)
    assert "engine auto: torch; pip install 'vitrail[fast]' would bring OpenVINO" in line and line.count("\n") == 1


def test_an_engine_that_cannot_be_loaded_leaves_torch(
    save: Callable[..., Path], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The process that measures could: what a user's script has imported, it has not."""
    path = save()
    Engine.open(path, engine="auto", calibration=PICTURES)
    said(capsys)

    def fail(checkpoint: Checkpoint, *, device: str, precision: str, pictures: Any = None) -> Any:
        raise VitrailError("openvino_telemetry is already imported")

    with monkeypatch.context() as broken:
        broken.setattr(Exact, "load", fail)
        engine = Engine.open(path, engine="auto")
    assert engine.backend.name == "torch" and engine.choice is None
    assert "engine auto: torch, because exact cannot be loaded: openvino_telemetry is already" in said(capsys)
    assert Engine.open(path, engine="auto").backend.name == "exact"  # in another process it can


@pytest.mark.parametrize("kind", [ImportError, AttributeError, None])
def test_openvino_that_cannot_be_imported_is_left_out(
    save: Callable[..., Path],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    kind: type[Exception] | None,
) -> None:
    """Because it is broken, or because the user's script let its telemetry loose; and it is back when it can be."""
    real = importlib.import_module

    def fail(name: str) -> Any:
        if name == "openvino" and kind is not None:
            raise kind("a library of it is missing")
        return real(name)

    needs: dict[str, tuple[str, ...]] = {"openvino": ("openvino",), "exact": ()}
    for module in (candidates_module, choose_module):
        monkeypatch.setattr(module, "NEEDS", needs)
    monkeypatch.setattr("vitrail.model.precision.computes_bf16", lambda device: True)
    path = save()
    with monkeypatch.context() as broken:
        broken.setattr(openvino_run, "core", openvino_run.core.__wrapped__)
        broken.setattr(importlib, "import_module", fail)
        if kind is None:
            broken.setitem(sys.modules, SENDER, ModuleType(SENDER))
        engine = Engine.open(path, engine="auto", precision="fp32", calibration=PICTURES)
    line = said(capsys)
    needed = "this needs openvino: pip install 'vitrail[fast]' (a library of it is missing)"
    reason = f"{SENDER} is already imported" if kind is None else needed
    assert f"engine auto: openvino is left out: {reason}" in line
    assert engine.backend.name == "exact" and "engine auto: exact in float32" in line
    seconds = {"torch": 0.4, "exact": 0.2, "openvino": 0.1}
    monkeypatch.setattr(
        measure_engines, "median_seconds", lambda runs: {name: seconds[name.partition(" ")[0]] for name in runs}
    )
    assert Engine.open(path, engine="auto", precision="fp32", calibration=PICTURES).backend.name == "openvino"


class OwnError(Exception):
    """Of no common kind, as ONNX Runtime's and protobuf's are."""


@pytest.mark.parametrize("kind", [RuntimeError, OwnError])
def test_an_engine_that_cannot_run_the_model_is_left_out(
    save: Callable[..., Path],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    kind: type[Exception],
) -> None:
    def fail(checkpoint: Checkpoint, *, device: str, precision: str, pictures: Any = None) -> Any:
        raise kind("no such operator\nand much more")

    monkeypatch.setattr(Exact, "load", fail)
    assert Engine.open(save(), engine="auto", calibration=PICTURES).backend.name == "torch"
    assert "exact in float32 is left out, for it cannot run this model: no such operator\n" in said(capsys)


def test_a_folder_of_pictures_in_evaluate(
    save: Callable[..., Path], photos: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = save()
    result = vitrail.evaluate(path, photos, engine="auto", bootstrap=0)
    assert "engine auto: exact in float32" in (line := said(capsys)) and "(12 pictures at hand)" in line
    assert result["engine"] == "exact" and result["precision"] == "float32"
    assert result["metrics"] == vitrail.evaluate(path, photos, bootstrap=0)["metrics"]
    result = vitrail.evaluate(path, photos, engine="auto", precision="bf16", bootstrap=0, calibration=photos / "cat")
    assert "engine auto: torch" in said(capsys)  # the others have no bf16
    assert (result["engine"], result["precision"]) == ("torch", "bfloat16")  # what was asked for, fast or not


def test_predict_in_the_shell_and_info(
    save: Callable[..., Path], photos: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = save()
    assert main(["predict", str(path), str(photos), "--engine", "auto"]) == 0
    printed = capsys.readouterr()
    assert "engine auto: exact in float32" in printed.err and ", in float32 by exact" in printed.err
    assert main(["info", str(path)]) == 0
    assert "exact in float32, 2.00 times as fast as torch in float32" in " ".join(capsys.readouterr().out.split())
    assert main(["info", str(path), "--json"]) == 0
    (row,) = json.loads(capsys.readouterr().out)["engines"]
    assert row["engine"] == "exact" and row["agreement"]["same"] == 12
    with pytest.raises(SystemExit, match="2"):
        main(["predict", str(path), str(photos), "--engine", "toaster"])
    assert "toaster" in capsys.readouterr().err


def test_an_engine_that_is_named_is_taken_and_compared_once(
    save: Callable[..., Path], photos: Path, capsys: pytest.CaptureFixture[str], engines: dict[str, float]
) -> None:
    path = save()
    assert run_predict(str(path), [str(photos)], engine="exact") == 0
    assert "vitrail: exact in float32, 2.00 times as fast as torch in float32: the same answer for 12 of" in said(
        capsys
    )
    assert run_predict(str(path), [str(photos)], engine="exact") == 0
    assert "2.00 times" not in said(capsys)
    for _ in range(2):  # a warning is repeated
        assert Engine.open(path, engine="wrong", calibration=PICTURES).backend.name == "wrong"
        assert "wrong in float32 does not give the answers of torch in float32: 4.00 times" in said(capsys)
    engines |= {"exact": 0.5, "wrong": 0.5}
    assert Engine.open(path, engine="exact", calibration=PICTURES, batch_size=1).backend.name == "exact"
    line = said(capsys)
    assert "exact in float32 is not faster here than torch in float32: " in line and "the same answer for 6 of" in line
    Engine.open(path, engine="wrong", calibration=PICTURES, batch_size=1)  # slow answers may be wrong, too
    assert "wrong in float32 does not give the answers of torch in float32: 0.80 times" in said(capsys)
    assert Engine.open(path, engine="exact", batch_size=2).backend.name == "exact"  # nothing to compare on
    assert said(capsys) == ""


@pytest.mark.parametrize(("engine", "precision"), [("compiled", "fp32"), ("torch", "bf16")])
def test_what_torch_itself_can_do_faster_is_compared_too(
    save: Callable[..., Path],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    engines: dict[str, float],
    engine: str,
    precision: str,
) -> None:
    monkeypatch.setattr(torch, "compile", lambda network: network)
    path = save()
    times = {"torch in float32": 0.4, "torch in bfloat16": 0.2, "compiled in float32": 0.2}
    monkeypatch.setattr(measure_engines, "median_seconds", lambda runs: {name: times[name] for name in runs})
    opened = Engine.open(path, engine=engine, precision=precision, calibration=PICTURES)
    name = f"{engine} in {opened.backend.precision}"
    assert f"vitrail: {name}, 2.00 times as fast as torch in float32: the same answer for 6 of 6" in said(capsys)
    Engine.open(path, engine=engine, precision=precision, calibration=PICTURES)
    assert said(capsys) == ""
    for precision in ("auto", "fp32"):  # nobody asked for it, and the first answer would wait; or it is the reference
        assert Engine.open(path, precision=precision, calibration=PICTURES).choice is None


def test_what_auto_chose_is_not_compared_again_when_a_worker_names_it(
    save: Callable[..., Path], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = save()
    many = [picture + np.uint8(shift) for shift in range(6) for picture in PICTURES]
    chosen = Engine.open(path, engine="auto", calibration=many)
    said(capsys)
    monkeypatch.setattr(named_engine, "choose", None)  # nobody may compare
    again = Engine.open(path, engine=chosen.backend.name, precision="fp32", calibration=many)
    assert again.choice == chosen.choice and said(capsys) == ""
    assert choices_of(fingerprint(again.checkpoint)) == [chosen.choice]  # two names, one choice


# ---- in a process of its own


class Crashing(Exact):
    """One that takes its process down when it runs."""

    name = "crashing"

    def __call__(self, images: Tensor, capture: Any = None) -> Tensor:
        os.kill(os.getpid(), signal.SIGSEGV)
        return super().__call__(images, capture)


def measure_with_stubs(measurement: Measurement) -> Choice:
    """In the child, which knows nothing of what a test has patched."""
    BACKENDS.update({"exact": f"{HERE}:Exact", "crashing": f"{HERE}:Crashing"})
    measure_engines.median_seconds = lambda runs: {name: 0.1 if "exact" in name else 0.4 for name in runs}
    return MEASURE(measurement)


def end_the_process(measurement: Measurement) -> Choice:
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError("the process is gone")


@pytest.fixture
def apart(monkeypatch: pytest.MonkeyPatch) -> None:
    needs: dict[str, tuple[str, ...]] = {"crashing": (), "exact": ()}
    for module in (candidates_module, choose_module):
        monkeypatch.setattr(module, "NEEDS", needs)
    monkeypatch.setattr(measure_engines, "run_in_child", run_in_child)
    monkeypatch.setattr(measure_engines, "measure", measure_with_stubs)


@pytest.mark.usefixtures("apart")
def test_an_engine_that_crashes_is_left_out_and_remembered(
    save: Callable[..., Path], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = save()
    engine = Engine.open(path, engine="auto", calibration=PICTURES[:2])
    assert engine.backend.name == "exact"
    line = said(capsys)
    assert "crashing in float32 is left out, because it crashes with this model (a segmentation fault)" in line
    assert "engine auto: exact in float32, 4.00 times as fast as torch in float32: the same answer for 2 of 2" in line
    assert "crashed on" in crashes_of(fingerprint(engine.checkpoint))["crashing in float32"]
    Engine.open(path, engine="auto", calibration=PICTURES)  # on more pictures it is measured again, without that one
    assert "crash" not in (line := said(capsys)) and "6 of 6 pictures" in line
    (choice,) = choices_of(fingerprint(engine.checkpoint))
    assert "(a segmentation fault)" in choice.refused["crashing in float32"]
    monkeypatch.setattr(crash_record, "machine", lambda: {"another": "machine"})
    assert crashes_of(fingerprint(engine.checkpoint)) == {}


@pytest.mark.usefixtures("apart")
def test_a_measurement_that_ends_without_a_result_leaves_torch(
    save: Callable[..., Path], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(measure_engines, "measure", end_the_process)
    engine = Engine.open(save(), engine="auto", calibration=PICTURES)
    assert engine.backend.name == "torch" and not crashes_of(fingerprint(engine.checkpoint))
    assert "the measurement of faster engines failed: it was killed, perhaps because memory ran out" in said(capsys)


def test_candidates_follow_the_precision(monkeypatch: pytest.MonkeyPatch) -> None:
    assert [str(one) for one in candidates("float32")] == ["torch in float32", "exact in float32", "wrong in float32"]
    monkeypatch.setattr("vitrail.model.precision.computes_bf16", lambda device: True)
    assert "torch in bfloat16" in [str(one) for one in candidates("auto")]
    assert [str(one) for one in candidates("bfloat16")] == ["torch in float32", "torch in bfloat16"]


def test_engines_take_turns() -> None:
    order: list[str] = []

    def run(name: str) -> Callable[[], None]:
        return lambda: order.append(name)

    seconds = median_seconds({"a": run("a"), "b": run("b")}, seconds=0.0)
    assert order == ["a", "b"] * 4 and set(seconds) == {"a", "b"}


@pytest.mark.parametrize(
    "command", ["predict", "evaluate", "serve", "embed", "index", "search", "knn", "explore", "suggest"]
)
def test_every_command_takes_the_same_engines(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="0"):
        main([command, "--help"])
    assert "auto|torch|compiled|openvino|onnxruntime" in "".join(capsys.readouterr().out.split())
