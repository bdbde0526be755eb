"""`vitrail suggest` as a user runs it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import vitrail
from vitrail.cli import main
from vitrail.inference.predictor import Predictor


def test_paths_a_page_and_a_table(
    save: Callable[..., Path], photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page, table = tmp_path / "next.html", tmp_path / "next.csv"
    command = ["suggest", str(save()), str(photos), "--number", "4", "--page", str(page), "--csv", str(table)]
    assert main(command) == 0
    shown = capsys.readouterr()
    lines = shown.out.splitlines()
    assert len(lines) == 4 and all(Path(line).is_file() for line in lines) and shown.err == ""
    assert table.read_text(encoding="utf-8").splitlines()[0] == "image,uncertainty,answer"
    text = page.read_text(encoding="utf-8")
    assert "4 images to label next" in text and all(line in text for line in lines)


def test_json_is_what_python_gives(save: Callable[..., Path], photos: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["suggest", str(save()), str(photos), "--number", "3", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == vitrail.suggest(save(), photos, number=3).to_dict()


@pytest.mark.parametrize("task", ["classify", "multilabel"])
def test_uncertainty_is_that_of_the_answers(save: Callable[..., Path], photos: Path, task: str) -> None:
    """By the head on vectors that are there, as by the whole model."""
    found = vitrail.suggest(save(task=task), photos, number=12)
    assert found.uncertainty is not None
    predictor = Predictor(save(task=task))
    for (_, output), unsure in zip(predictor.outputs(found.pile.paths), found.uncertainty, strict=True):
        expected = predictor.engine.task.uncertainty(output[None])
        assert expected is not None and unsure == pytest.approx(float(expected), abs=1e-4)


@pytest.mark.parametrize(
    "head", [{"head": "mask_linear", "task": "segment"}, {"head": "box_tokens", "queries": 5, "task": "detect"}]
)
def test_dense_models_say_how_sure_they_are(save: Callable[..., Path], photos: Path, head: dict[str, Any]) -> None:
    found = vitrail.suggest(save(**head), photos, number=3)
    assert found.uncertainty is not None and ((found.uncertainty >= 0) & (found.uncertainty <= 1)).all()
    assert len(found.places) == 3 and np.ptp(found.uncertainty) > 0


def test_a_model_without_a_head_suggests_what_is_diverse_and_says_so(
    save: Callable[..., Path], photos: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["suggest", str(save(labels=None, task="embed", classes=0)), str(photos), "--number", "2"]) == 0
    shown = capsys.readouterr()
    assert len(shown.out.splitlines()) == 2 and "diverse, not uncertain" in shown.err


def test_what_has_a_label_is_not_suggested(
    save: Callable[..., Path], photos: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    labelled = photos / "cat"
    found = vitrail.suggest(save(), photos, number=12, labelled=labelled)
    assert {path.parent.name for path in found.pile.paths} == {"dog"} and len(found.places) == 6
    assert main(["suggest", str(save()), str(labelled), "--labelled", str(photos)]) == 2
    assert "have a label already" in capsys.readouterr().err
