"""The command `vitrail check`, as the command line calls it."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from vitrail.commands.check import run_check
from vitrail.errors import VitrailError


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    random = np.random.default_rng(0)
    for label in ("cat", "dog"):
        (tmp_path / "data" / label).mkdir(parents=True)
        for n in range(12):
            pixels = random.integers(0, 256, (5, 5, 3), dtype=np.uint8)
            Image.fromarray(pixels).resize((40, 40)).save(tmp_path / "data" / label / f"{n}.png")
    return tmp_path / "data"


def test_text_and_exit_code(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_check(folder) == 0
    assert capsys.readouterr().out.startswith("24 images in 2 classes (folders)")
    (folder / "cat" / "1.png").write_bytes(b"")
    assert run_check(folder) == 1
    out = capsys.readouterr().out
    assert "cat/1.png  is empty (0 bytes)" in out and "mend the errors before training" in out


def test_json_is_all_that_is_printed(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_check(folder, json=True, page=tmp_path / "page.html") == 0
    assert json.loads(capsys.readouterr().out)["images"] == 24
    assert (tmp_path / "page.html").read_text("utf-8").startswith("<!doctype html>")


def test_out_takes_the_place_of_printing(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run_check(folder, json=True, out=tmp_path / "deep" / "report.json", fast=True)
    assert capsys.readouterr().out == ""
    assert json.loads((tmp_path / "deep" / "report.json").read_text())["fast"] is True


def test_an_unwritable_page_is_one_sentence(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(VitrailError, match="cannot write"):
        run_check(folder, page=tmp_path / "file" / "page.html")


def test_hopeless_data_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(VitrailError, match="holds no images"):
        run_check(tmp_path)


def test_a_name_that_is_no_text_can_be_printed_and_written(folder: Path, tmp_path: Path) -> None:
    import os

    (folder / "cat" / os.fsdecode(b"\xff\xfe.png")).write_bytes(b"")
    assert run_check(folder, page=tmp_path / "page.html", out=tmp_path / "out.txt") == 1
    assert run_check(folder, json=True, out=tmp_path / "out.json") == 1
    assert json.loads((tmp_path / "out.json").read_text())["ok"] is False


def test_the_bar_is_for_terminals(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    import sys

    run_check(folder)
    assert capsys.readouterr().err == ""
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    run_check(folder)
    assert "24 of 24" in capsys.readouterr().err
    run_check(folder, quiet=True)
    assert capsys.readouterr().err == ""
