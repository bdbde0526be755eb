"""`vitrail bench`: every engine in a process of its own, rows counted by hand, what cannot run said in a line."""

from __future__ import annotations

import dataclasses
import json
from xml.etree import ElementTree

import numpy as np
import pytest

import vitrail
from tests.inference.conftest import random_picture
from vitrail.cli import main
from vitrail.commands.bench import measured
from vitrail.errors import VitrailError
from vitrail.inference.auto.candidates import Candidate
from vitrail.inference.auto.compare import compare
from vitrail.inference.bench import contenders, measure
from vitrail.inference.bench.bench_process import WorkerProcess
from vitrail.inference.bench.bench_text import machine_line
from vitrail.inference.bench.bench_worker import Worker
from vitrail.inference.bench.measure import Measured
from vitrail.report.pages.bench_chart import bench_chart
from vitrail.weights.load import load

KEYS = {"engine", "precision", "batch", "images_per_second", "p50_ms", "p95_ms", "peak_mb", "agreement", "peak_share"}


def test_two_engines_side_by_side(save, capfd, tmp_path):
    model, plot = save(), tmp_path / "bench.svg"
    words = ["bench", str(model), "--engines", "torch:fp32,openvino:fp32", "--batch", "2,1", "--rounds", "2", "--json"]
    assert main([*words, "--plot", str(plot)]) == 0
    rows = json.loads(capfd.readouterr().out)
    found = [(row["engine"], row["precision"], row["batch"]) for row in rows]
    assert found == [(engine, "fp32", batch) for engine in ("torch", "openvino") for batch in (1, 2)]
    for row in rows:
        assert row.keys() >= KEYS
        assert row["agreement"] == 1
        assert row["images_per_second"] > 0 and 0 < row["p50_ms"] <= row["p95_ms"]
        assert 20 < row["peak_mb"] < 5000 and 0 < row["peak_share"] < 2 and row["rounds"] == 2
    drawn = ElementTree.fromstring(plot.read_text(encoding="utf-8"))
    texts = " ".join("".join(node.itertext()) for node in drawn.iter())
    assert "openvino fp32" in texts and "batch 2" in texts and "images a second" in texts


def test_from_python_with_merged_tokens_on_real_pictures(save, photos):
    [row] = vitrail.bench(save(), engines="torch:fp32", batch=1, rounds=1, calibration=photos, merge_tokens=1)
    assert row.keys() >= KEYS and row["batch"] == 1


def test_masks_of_one_window_are_compared_where_the_window_is(save, tmp_path, monkeypatch):
    """A picture larger than the window: what lies beyond is no answer of anybody."""
    (tmp_path / "large").mkdir()
    random_picture(0, (40, 64)).save(tmp_path / "large" / "0.png")
    model = load(save(task="segment", head="mask_linear"))
    windows = dataclasses.replace(model, preprocessing=model.preprocessing.replace(resize="window", crop_fraction=1.0))
    file, shapes = windows.save(tmp_path / "windows.safetensors"), []

    def comparing(engine, expected, given):
        shapes.extend(mask.shape for mask in [*expected, *given])
        return compare(engine, expected, given)

    monkeypatch.setattr(measure, "compare", comparing)
    rows = vitrail.bench(
        file, engines=["torch:fp32", "openvino:fp32"], batch=1, rounds=1, calibration=tmp_path / "large"
    )
    assert shapes == [(32, 32)] * 4 and [row["agreement"] for row in rows] == [1, 1]


def test_a_worker_that_dies_costs_its_own_rows(save, monkeypatch):
    ask = WorkerProcess.ask

    def dies(worker, do, **settings):
        if do == "run" and settings["batch"] == 2:
            worker._process.kill()
        return ask(worker, do, **settings)

    monkeypatch.setattr(WorkerProcess, "ask", dies)
    result = measured(save(), engines="torch:fp32", batch=[1, 2], rounds=2, calibration=None, merge_tokens=0)
    assert [(row["batch"], row["rounds"]) for row in result.rows] == [(1, 1)]
    assert any("torch in fp32 ended in batches of 2: " in note for note in result.notes), result.notes


def test_outputs_come_in_batches_that_are_measured_and_no_others(tmp_path):
    """OpenVINO keeps fast graphs for the first sizes that come: a rest of another size would take the place of one."""
    np.save(tmp_path / "pictures.npy", np.arange(10 * 3, dtype=np.float32).reshape(10, 3, 1, 1))
    sizes = []

    def forward(images):
        sizes.append(len(images))
        return images.flatten(1) * 2

    worker = Worker(forward, str(tmp_path / "pictures.npy"))
    worker.outputs(str(tmp_path / "outputs.npy"), batch=4)
    assert sizes == [4, 4, 4]
    assert (np.load(tmp_path / "outputs.npy") == 2 * np.arange(30).reshape(10, 3)).all()


def test_a_process_has_as_many_batch_sizes_as_graphs_of_their_own(save, monkeypatch):
    asked, ask = [], WorkerProcess.ask

    def note(worker, do, **settings):
        asked.append((id(worker), do, settings["batch"]))
        return ask(worker, do, **settings)

    monkeypatch.setattr(WorkerProcess, "ask", note)
    result = measured(save(), engines="openvino:fp32", batch=[3, 1, 2], rounds=1, calibration=None, merge_tokens=0)
    assert sorted(row["batch"] for row in result.rows) == [1, 2, 3]
    by_process = {}
    for worker, _, batch in asked:
        by_process.setdefault(worker, set()).add(batch)
    assert sorted(map(sorted, by_process.values())) == [[1, 2], [3]]


def test_a_row_is_counted_by_hand():
    entry = Measured(Candidate("torch", "fp32"), batch=2, agreement=0.5, peak_bytes=3_000_000)
    entry.rounds = [[0.1, 0.1, 0.2], [0.2, 0.2], [0.5]]  # 15, 10 and 4 images a second
    row = entry.row(operations=1e9, peak=40e9)
    assert row["images_per_second"] == pytest.approx(10)
    assert row["spread"] == pytest.approx(11 / 20)
    assert (row["p50_ms"], row["p95_ms"]) == (pytest.approx(200), pytest.approx(425))
    assert (row["peak_mb"], row["agreement"], row["peak_share"]) == (3.0, 0.5, pytest.approx(0.25))


def test_what_is_not_installed_is_said_in_one_line(monkeypatch):
    monkeypatch.setattr(contenders, "is_installed", lambda engine: engine != "openvino")
    found, notes = contenders.choose_contenders(["openvino", "torch:fp32"])
    assert found == [("torch", "fp32")]
    assert notes == ["openvino is not installed: pip install 'vitrail[fast]'"]


@pytest.mark.parametrize("computed", [False, True])
def test_all_engines_in_all_precisions_of_this_cpu(monkeypatch, computed):
    monkeypatch.setattr("vitrail.model.precision.computes_bf16", lambda device: computed)
    found, _ = contenders.choose_contenders(None)
    assert {candidate.engine for candidate in found} == {"torch", "compiled", "openvino", "onnxruntime"}
    assert ("openvino", "int8") in found
    assert any(candidate.precision == "bf16" for candidate in found) == computed


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["--engines", "tensorrt"], "there is no engine 'tensorrt'"),
        (["--engines", "torch:fp8"], "there is no precision 'fp8'"),
        (["--plot", "bench.png"], "ends in .svg"),
        (["--calibration", "nowhere"], "nowhere is no folder"),
    ],
)
def test_wrong_arguments_are_one_sentence(capfd, words, reason):
    assert main(["bench", "mu/16", "--batch", "1", *words]) == 2
    said = capfd.readouterr().err
    assert reason in said and len(said.strip().splitlines()) == 1


def test_an_engine_that_cannot_run_is_left_out_with_its_reason(save, capfd):
    assert main(["bench", str(save()), "--engines", "torch:int8,torch:fp32", "--batch", "1", "--rounds", "1"]) == 0
    out = capfd.readouterr().out
    assert "torch in int8 is left out: " in out and out.count("fp32 ") >= 1


def test_a_worker_that_dies_leaves_its_last_words(tmp_path):
    with pytest.raises(VitrailError, match="no_such_model"):
        WorkerProcess(model=str(tmp_path / "no_such_model"), pictures="", engine="torch", precision="fp32")


def test_ctrl_c_shows_what_was_measured_and_leaves_no_process(save, capfd, monkeypatch):
    asked, ask, processes = [], WorkerProcess.ask, set()

    def ask_until_ctrl_c(worker, do, **settings):
        processes.add(worker._process)
        asked.append(do)
        if asked.count("run") == 3:
            raise KeyboardInterrupt
        return ask(worker, do, **settings)

    monkeypatch.setattr(WorkerProcess, "ask", ask_until_ctrl_c)
    assert main(["bench", str(save()), "--engines", "torch:fp32", "--batch", "1", "--rounds", "1000", "--json"]) == 130
    out, err = capfd.readouterr()
    assert [row["rounds"] for row in json.loads(out)] == [2] and "stopped early, after 2 rounds" in err
    assert all(process.poll() is not None for process in processes)


def test_names_in_a_chart_are_text():
    row = {"engine": "torch", "precision": "fp32", "batch": 1, "images_per_second": 3.0}
    drawn = bench_chart([row], "<b>& my model", "a CPU")
    assert "<b>" not in drawn and ElementTree.fromstring(drawn) is not None


def test_the_machine_has_a_name():
    assert "core" in machine_line() and "(" in machine_line()
