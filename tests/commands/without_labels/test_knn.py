"""`vitrail knn` as a user runs it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

import vitrail
from vitrail.cli import main


def test_text_for_people(save: Callable[..., Path], photos: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["knn", str(save()), str(photos), "--bootstrap", "20", "--k", "3"]) == 0
    shown = capsys.readouterr()
    assert "12 images of" in shown.out and "in 5 folds" in shown.out
    assert "k-NN, k = 3" in shown.out and "linear probe" in shown.out and "95 % interval" in shown.out
    assert shown.err == ""


def test_json_is_what_python_gives(save: Callable[..., Path], photos: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (photos / "dog" / "broken.png").write_bytes(b"nothing")
    assert main(["knn", str(save()), str(photos), "--json", "--bootstrap", "0"]) == 0
    shown = capsys.readouterr()
    result = json.loads(shown.out)
    assert result == vitrail.knn(str(save()), str(photos), bootstrap=0)
    assert result["measured"] == 12 and len(result["unreadable"]) == 1 and result["precision"] == "float32"
    assert shown.err == "vitrail: 1 image could not be read and did not count\n"
