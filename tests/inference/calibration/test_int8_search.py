"""int8 is searched in a process of its own: a crash is tried once more, then it is a sentence."""

from __future__ import annotations

import os
import signal
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from torch import nn

from tests.conftest import lively_vit
from vitrail.errors import VitrailError
from vitrail.graphs import quantize, quantize_search
from vitrail.graphs.graph_formats import graph_from_parts
from vitrail.inference.calibration import int8_search
from vitrail.inference.calibration.calibration_images import CalibrationImages
from vitrail.inference.calibration.int8_search import Int8Job, search_int8_apart
from vitrail.inference.calibration.quantized_model import quantized_model
from vitrail.inference.image_processor import ModelInput
from vitrail.model.presets import preset
from vitrail.weights.checkpoint import Checkpoint
from vitrail.weights.preprocessing import Preprocessing

PICTURES = [np.random.default_rng(n).integers(0, 255, (32, 32, 3), dtype=np.uint8) for n in range(12)]
ATTEMPTS = "VITRAIL_TEST_ATTEMPTS"  # a variable that the child inherits: a file with a line for each attempt
CRASHES = "VITRAIL_TEST_CRASHES"  # and how many of them crash


def job() -> Int8Job:
    checkpoint = Checkpoint(
        lively_vit(preset("mu/16", image_size=32, classes=5, depth=1)), Preprocessing(size=(32, 32))
    )
    return Int8Job(
        checkpoint, (32, 32), "openvino", CalibrationImages([ModelInput(p) for p in PICTURES], "12 pictures")
    )


FIND = int8_search.find_int8


def find_or_crash(job: Int8Job, threads: int) -> tuple[list[bytes], dict[str, Any]]:
    """The search, after so many crashes; quicker than a real one."""
    attempts = Path(os.environ[ATTEMPTS])
    with attempts.open("a") as file:
        file.write("attempt\n")
    if len(attempts.read_text().splitlines()) <= int(os.environ[CRASHES]):
        os.kill(os.getpid(), signal.SIGSEGV)
    quantize_search.ALPHAS = (None,)
    int8_search.quantized_model = partial(quantized_model, allowed_drop=100.0)
    return FIND(job, threads)


@pytest.fixture
def attempts(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setenv(ATTEMPTS, str(tmp_path / "attempts.txt"))
    monkeypatch.setattr(int8_search, "find_int8", find_or_crash)
    return tmp_path / "attempts.txt"


def test_after_one_crash_it_is_there(
    attempts: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(CRASHES, "1")
    parts, record = search_int8_apart(job())
    assert "the search for int8 crashed (a segmentation fault): it is tried once more" in capsys.readouterr().err
    assert len(attempts.read_text().splitlines()) == 2
    assert (record["images"], record["layers"]) == (12, 7)
    int8 = graph_from_parts("openvino", parts)
    assert quantize.compiled(int8)(np.zeros((2, 3, 32, 32), np.float32)).shape == (2, 5)


def test_two_crashes_are_a_sentence(attempts: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(CRASHES, "9")
    with pytest.raises(VitrailError, match=r"crashed in its search, 2 times \(a segmentation fault\): run it again"):
        search_int8_apart(job())
    assert len(attempts.read_text().splitlines()) == 2


def test_a_network_of_a_script_is_searched_here(monkeypatch: pytest.MonkeyPatch) -> None:
    class Own(nn.Module):
        """What another process could not import."""

    own = job()
    own.checkpoint.model.add_module("own", Own())
    monkeypatch.setattr(int8_search, "find_int8", lambda job, threads: ([], {"process": os.getpid()}))
    assert search_int8_apart(own)[1]["process"] == os.getpid()
