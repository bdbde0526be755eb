"""A second start from the cache: without torch, with the same answers, and only if nothing has changed."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from vitrail.cli import main
from vitrail.commands.predict import run_predict
from vitrail.inference.auto import measure_engines
from vitrail.inference.backends.graph_cache import ENDING, GraphCache, fingerprint
from vitrail.inference.cached_start import cached_engine, start_record
from vitrail.inference.cached_start.cached_engine import CachedEngine, open_cached
from vitrail.inference.predictor import Predictor
from vitrail.weights.familiarity.reference_vectors import fit_familiarity
from vitrail.weights.load import load

OPTIONS = ["--engine", "openvino", "--precision", "fp32"]
SAYS_WHAT_IT_IMPORTED = """
import sys
from vitrail.cli import main
code = main(sys.argv[1:])
print("torch was imported" if "torch" in sys.modules else "no torch", file=sys.stderr)
sys.exit(code)
"""


@pytest.fixture(autouse=True)
def cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setenv("VITRAIL_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def cached(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Whether each start was one from the cache."""
    starts: list[bool] = []

    def spy(*arguments: Any) -> CachedEngine | None:
        engine = open_cached(*arguments)
        starts.append(engine is not None)
        return engine

    monkeypatch.setattr(cached_engine, "open_cached", spy)
    return starts


def rows(path: Path, photos: Path, capsys: pytest.CaptureFixture[str], *options: str) -> Any:
    assert main(["predict", str(path), str(photos), *OPTIONS, *options, "--json", "-"]) == 0
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def test_the_second_start_imports_no_torch_and_answers_the_same(save: Callable[..., Path], photos: Path) -> None:
    arguments = ["predict", str(save()), str(photos), *OPTIONS, "--json", "-"]
    first, second = (
        subprocess.run(
            [sys.executable, "-c", SAYS_WHAT_IT_IMPORTED, *arguments], capture_output=True, text=True, env=os.environ
        )
        for _ in range(2)
    )
    assert first.returncode == second.returncode == 0, first.stderr + second.stderr
    assert "torch was imported" in first.stderr and "no torch" in second.stderr, second.stderr
    assert first.stdout == second.stdout and len(first.stdout.splitlines()) == 12
    assert "12 images in" in second.stderr and "in float32 by openvino" in second.stderr


@pytest.mark.parametrize("task", ["classify", "multilabel", "regress"])
@pytest.mark.parametrize("form", ["text", "csv"])
def test_every_task_of_whole_images_answers_as_before(
    save: Callable[..., Path],
    photos: Path,
    task: str,
    form: str,
    cached: list[bool],
    capsys: pytest.CaptureFixture[str],
) -> None:
    path, options = save(task=task), ["--csv", "-"] if form == "csv" else []
    printed = []
    for _ in range(2):
        assert main(["predict", str(path), str(photos), "--engine", "onnxruntime", *options]) == 0
        printed.append(capsys.readouterr().out)
    assert cached == [False, True] and printed[0] == printed[1]


def test_familiarity_is_told_as_before(
    save: Callable[..., Path], photos: Path, cached: list[bool], capsys: pytest.CaptureFixture[str]
) -> None:
    path = save()
    checkpoint = load(path)
    generator = torch.Generator().manual_seed(0)
    vectors = torch.randn(70, checkpoint.config.pooled_width, generator=generator)
    checkpoint.familiarity = fit_familiarity(vectors[:50], vectors[50:])
    checkpoint.save(path)
    first, second = (rows(path, photos, capsys, "--unknown") for _ in range(2))
    assert cached == [False, True] and first == second
    assert {row["familiar"] for row in first} <= {True, False} and "familiarity" in first[0]


def test_numbered_labels_and_a_broken_image(
    save: Callable[..., Path], photos: Path, cached: list[bool], capsys: pytest.CaptureFixture[str]
) -> None:
    path = save(labels=None)
    (photos / "broken.jpg").write_bytes(b"no picture")
    printed = []
    for _ in range(2):
        assert main(["predict", str(path), str(photos), *OPTIONS, "--fast-decode"]) == 1
        printed.append(capsys.readouterr().out)
    assert cached == [False, True] and printed[0] == printed[1]
    assert "class 0" in printed[1] and "broken.jpg: error: " in printed[1]


CHANGES: dict[str, Callable[[Path, Path], object]] = {
    "touched": lambda path, cache: os.utime(path, ns=(1, 1)),
    "copied over itself": lambda path, cache: (shutil.copy2(path, f"{path}.new"), os.replace(f"{path}.new", path)),
    "graph gone": lambda path, cache: _graph(cache).unlink(),
    "graph damaged": lambda path, cache: _flip(_graph(cache)),
    "record damaged": lambda path, cache: _flip(_record(cache)),
    "record of another kind": lambda path, cache: _set(_record(cache), "threads", "two"),
    "record of another graph": lambda path, cache: _set(_record(cache), "graph", "openvino-1x1"),
}


def test_what_has_changed_is_looked_at_again(
    save: Callable[..., Path], photos: Path, cache: Path, cached: list[bool], capsys: pytest.CaptureFixture[str]
) -> None:
    path = save()
    before = rows(path, photos, capsys)
    for name, change in CHANGES.items():  # in one test, for tracing takes seconds
        cached.clear()
        change(path, cache)
        assert [rows(path, photos, capsys), rows(path, photos, capsys)] == [before] * 2, name
        assert cached == [False, True], name
    cached.clear()
    save(depth=3)  # another model in its place
    after = [rows(path, photos, capsys), rows(path, photos, capsys)]
    assert after[0] == after[1] != before and cached == [False, True]


def _graph(cache: Path, name: str = "*") -> Path:
    (graph,) = cache.glob(f"graphs/*/{name}{ENDING}")
    return graph


def _record(cache: Path) -> Path:
    (record,) = cache.glob("starts/*.json")
    return record


def _flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 255
    path.write_bytes(data)


def _set(path: Path, name: str, value: Any) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | {name: value}))


def test_other_options_and_another_machine_are_another_start(
    save: Callable[..., Path],
    photos: Path,
    cached: list[bool],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    path = save()
    rows(path, photos, capsys)
    rows(path, photos, capsys, "--batch-size", "2")
    here = start_record.machine_without_torch()
    for change in ("versions", "cpu"):
        monkeypatch.setattr(start_record, "machine_without_torch", lambda change=change: here | {change: "another"})
        rows(path, photos, capsys)
    monkeypatch.setattr(start_record, "machine_without_torch", lambda: here)
    rows(path, photos, capsys)
    monkeypatch.setenv("OMP_NUM_THREADS", "7")
    rows(path, photos, capsys)
    assert cached == [False, False, False, False, True, False]


def test_more_pictures_are_compared(
    save: Callable[..., Path], photos: Path, cached: list[bool], capsys: pytest.CaptureFixture[str]
) -> None:
    """The first start has seen 6; a choice on fewer than 32 is made again when there are more."""
    path = save()
    for folder in (photos / "cat", photos / "cat", photos, photos / "dog"):
        rows(path, folder, capsys)
    assert cached == [False, True, False, True]


def test_auto_looks_again_when_int8_has_come(
    save: Callable[..., Path], photos: Path, cached: list[bool], cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is one more engine to choose among."""
    monkeypatch.setattr(measure_engines, "run_in_child", lambda function, *arguments: function(*arguments))
    monkeypatch.setattr(
        measure_engines, "median_seconds", lambda runs: {name: 0.1 if "onnx" in name else 0.4 for name in runs}
    )
    path = save()
    for _ in range(2):
        assert run_predict(str(path), [str(photos)], engine="auto", precision="fp32") == 0
    graph = _graph(cache, "onnx-*")
    GraphCache(fingerprint(load(path))).write("onnx-int8-32x32", [b"{}"])
    assert graph.parent == GraphCache(fingerprint(load(path))).folder
    assert run_predict(str(path), [str(photos)], engine="auto", precision="fp32") == 0
    assert run_predict(str(path), [str(photos)], engine="onnxruntime", precision="fp32") == 0
    assert cached == [False, True, False, False]


def test_a_file_that_is_not_ours_and_a_task_that_needs_torch(
    save: Callable[..., Path], photos: Path, cached: list[bool], tmp_path: Path
) -> None:
    segmenter = save(task="segment", head="mask_linear")
    for _ in range(2):
        assert run_predict(str(segmenter), [str(photos)], engine="openvino", precision="fp32") == 0
    folder = tmp_path / "folder"
    folder.mkdir()
    shutil.copy(save(), folder / "model.safetensors")
    for _ in range(2):
        assert run_predict(str(folder), [str(photos)], engine="openvino", precision="fp32") == 0
    assert cached == [False] * 4


def test_a_predictor_of_the_cache_and_one_of_torch_run_the_same_numbers(
    save: Callable[..., Path], photos: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = save()
    rows(path, photos, capsys)
    options: Any = {"engine": "openvino", "precision": "fp32", "device": "auto", "batch_size": None, "merge_tokens": 0}
    engine = open_cached(path, options | {"calibration": [], "fast_decode": False})
    assert engine is not None
    predictor = Predictor(path, engine="openvino", precision="fp32")
    images = [predictor.engine.read(picture) for picture in sorted(photos.rglob("*.png"))]
    expected = np.stack([row.numpy() for row in predictor.engine.outputs(images)])
    assert np.array_equal(np.stack(engine.outputs(images)), expected)
