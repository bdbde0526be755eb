"""`vitrail evaluate` as a user runs it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.warm_process import run_vitrail
from vitrail.cli import main


def test_text_for_people(save: Callable[..., Path], photos: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["evaluate", str(save()), str(photos), "--bootstrap", "20"]) == 0
    shown = capsys.readouterr()
    assert "12 images of" in shown.out and "95 % interval" in shown.out
    assert shown.err == ""


def test_json_for_programs(save: Callable[..., Path], photos: Path) -> None:
    (photos / "dog" / "broken.png").write_bytes(b"nothing")
    run = run_vitrail(["evaluate", save(), photos, "--json", "--bootstrap", "0"])
    assert run.returncode == 0, run.stderr
    result = json.loads(run.stdout)
    assert (result["images"], result["part"], len(result["unreadable"])) == (12, "all", 1)
    assert result["model"] == str(save()) and result["data"] == str(photos)
    assert run.stderr == "vitrail: 1 image could not be read and did not count\n"


def test_a_mistake_is_one_sentence(save: Callable[..., Path], photos: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["evaluate", str(save()), str(photos), "--part", "test"]) == 2
    shown = capsys.readouterr()
    assert "has no test part" in shown.err and shown.err.count("\n") == 1


def test_it_is_float32_unless_asked(
    save: Callable[..., Path], photos: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("vitrail.model.precision.computes_bf16", lambda device: True)
    results = {}
    for option in ("auto", "fp32", "bf16"):
        command = ["evaluate", str(save()), str(photos), "--bootstrap", "0", "--precision", option]
        assert main(command) == 0
        assert ("computed in bfloat16" in capsys.readouterr().out) is (option == "bf16")
        assert main([*command, "--json"]) == 0
        results[option] = json.loads(capsys.readouterr().out)
    assert results["auto"] == results["fp32"] and results["auto"]["precision"] == "float32"
    assert results["bf16"]["precision"] == "bfloat16"
    assert results["bf16"]["metrics"]["ece"] != results["fp32"]["metrics"]["ece"]
