"""Two processes that compile the same graphs at once, into an empty cache, with one core for both."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import vitrail
from tests.inference.conftest import random_picture
from vitrail.inference.backends.backend import load_backend
from vitrail.inference.backends.graph_backend import GraphBackend
from vitrail.inference.engine import open_model

PREDICTS = """
import json, os, sys, time
from pathlib import Path
if hasattr(os, "sched_setaffinity"):
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
import torch
from vitrail.inference.engine import Engine, open_model
from vitrail.inference.predictor import Predictor
model, photos, own, other = map(Path, sys.argv[1:5])
loaded = open_model(model)
own.touch()
while not other.exists():  # both begin at once
    time.sleep(0.01)
answers = {"threads": torch.get_num_threads()}
for engine in sys.argv[5:]:
    predictor = Predictor(Engine.open(loaded, engine=engine, precision="fp32"))
    answers[engine] = [row.answer for row in predictor.predict(sorted(photos.iterdir()))]
print(json.dumps(answers))
"""


def test_two_processes_on_one_core(
    save: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Both give torch's answers, and what they leave in the cache is whole."""
    model, photos, cache = save(depth=1), tmp_path / "photos", tmp_path / "cache"
    photos.mkdir()
    for number in range(5):
        random_picture(number).save(photos / f"{number}.png")
    expected = vitrail.load(model).predict(sorted(photos.iterdir()), precision="fp32")
    environment = {**os.environ, "VITRAIL_CACHE": str(cache), "PYTHONPATH": os.pathsep.join(sys.path)}
    environment.pop("OMP_NUM_THREADS", None)  # as many as there are cores
    first, second = str(tmp_path / "first"), str(tmp_path / "second")
    engines = [["openvino", "torch", "onnxruntime"], ["openvino"]]  # both trace OpenVINO's graph first
    runs = [
        subprocess.Popen(
            [sys.executable, "-c", PREDICTS, str(model), str(photos), *ready, *names],
            env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )
        for ready, names in zip([(first, second), (second, first)], engines, strict=True)
    ]  # fmt: skip
    ended = [run.communicate(timeout=300) for run in runs]
    for run, names, (printed, said) in zip(runs, engines, ended, strict=True):
        assert run.returncode == 0, said
        assert "openvino is being prepared" in said  # it did not find what the other had made: both made it at once
        assert "damaged" not in said and "not taken" not in said and "not kept" not in said, said
        answers = json.loads(printed)
        if hasattr(os, "sched_setaffinity"):
            assert answers["threads"] == 1
        for engine in names:
            for answer, right in zip(answers[engine], expected, strict=True):
                assert answer["label"] == right["label"]
                assert answer["probability"] == pytest.approx(right["probability"], abs=1e-4)
    monkeypatch.setenv("VITRAIL_CACHE", str(cache))
    monkeypatch.setattr(GraphBackend, "make_graph", no_graph)
    for engine in ("openvino", "onnxruntime"):
        load_backend(engine, open_model(model), precision="fp32")
    assert capsys.readouterr().err == ""
    files = [path for path in (cache / "graphs").rglob("*") if path.is_file()]
    assert [path.suffix for path in files] == [".graph"] * 2


def no_graph(self: GraphBackend, *size: Any) -> list[bytes]:
    raise AssertionError("it is in the cache")
