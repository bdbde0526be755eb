"""Files that can be read again, and that are there only when complete."""

from __future__ import annotations

import csv
import io
import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from vitrail.errors import VitrailError
from vitrail.images.unreadable import UnreadableImage
from vitrail.inference.output.writers import as_line, csv_rows, json_rows, no_formula
from vitrail.inference.predictor import Prediction
from vitrail.tasks.registry import task_for
from vitrail.text import harmless

NAMES = ("plain.jpg", 'a b, "c".jpg', "größe/猫.png", "line\nbreak.png", os.fsdecode(b"\xff.png"))
TASK = task_for("classify", ["cat", "dog", "Uhu, großer"])


def predictions() -> list[Prediction]:
    answers = TASK.answer(torch.arange(3.0 * len(NAMES)).reshape(-1, 3).square() / 50, 2)
    rows = [Prediction(Path(name), answer) for name, answer in zip(NAMES, answers, strict=True)]
    return [*rows, Prediction("b.jpg", error=UnreadableImage("b.jpg", "empty", "is empty (0 bytes)"))]


def test_json_is_a_list_that_reads_back(tmp_path: Path) -> None:
    with json_rows(tmp_path / "out.json") as write:
        for prediction in predictions():
            write(prediction)
        assert not (tmp_path / "out.json").exists()
    rows = json.loads((tmp_path / "out.json").read_text("utf-8"))
    assert [row["image"] for row in rows] == [*NAMES, "b.jpg"]
    assert rows[0] == {"image": "plain.jpg", **(predictions()[0].answer or {}), "precision": "float32"}
    assert rows[-1] == {"image": "b.jpg", "error": "b.jpg is empty (0 bytes)"}
    assert "猫" in (tmp_path / "out.json").read_text("utf-8")


def test_json_of_nothing_is_an_empty_list(tmp_path: Path) -> None:
    with json_rows(tmp_path / "out.json"):
        pass
    assert json.loads((tmp_path / "out.json").read_text()) == []


def test_csv_reads_back_with_the_same_columns_in_every_row(tmp_path: Path) -> None:
    with csv_rows(tmp_path / "out.csv", TASK, 2) as write:
        for prediction in predictions():
            write(prediction)
    with (tmp_path / "out.csv").open(encoding="utf-8", errors="surrogateescape", newline="") as file:
        rows = list(csv.DictReader(file))
    assert list(rows[0]) == ["image", "label", "probability", "label_2", "probability_2", "error"]
    assert [row["image"] for row in rows] == [*NAMES, "b.jpg"]
    for row, prediction in zip(rows[:-1], predictions(), strict=False):
        assert prediction.answer is not None
        assert row["label"] == prediction.answer["label"]
        assert float(row["probability"]) == prediction.answer["probability"]
    assert rows[-1]["label"] == "" and rows[-1]["error"] == "b.jpg is empty (0 bytes)"


@pytest.mark.parametrize(
    ("task", "labels", "columns"),
    [
        ("classify", ["a"], ["label", "probability", "error"]),
        ("multilabel", ["a", "b"], ["labels", "probabilities", "error"]),
        ("regress", ["age", "error"], ["age", "error", "image_error"]),
    ],
)
def test_columns_come_from_the_task(tmp_path: Path, task: str, labels: list[str], columns: list[str]) -> None:
    with csv_rows(tmp_path / "out.csv", task_for(task, labels), 5):
        pass
    assert (tmp_path / "out.csv").read_text() == ",".join(["image", *columns]) + "\n"


@pytest.mark.parametrize("rows", [json_rows, lambda path: csv_rows(path, TASK, 2)], ids=["json", "csv"])
@pytest.mark.parametrize("end", [KeyboardInterrupt, RuntimeError])
def test_a_failure_leaves_what_was_there(tmp_path: Path, rows: Any, end: type[BaseException]) -> None:
    path = tmp_path / "out"
    path.write_text("before")
    with pytest.raises(end), rows(path) as write:
        write(predictions()[0])
        raise end
    assert path.read_text() == "before"
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("rows", [json_rows, lambda path: csv_rows(path, TASK, 2)], ids=["json", "csv"])
def test_a_place_that_cannot_be_written_is_said_at_once(tmp_path: Path, rows: Any) -> None:
    with pytest.raises(VitrailError, match="is a folder"), rows(tmp_path):
        pass
    (tmp_path / "file").write_text("")
    with pytest.raises(VitrailError, match="cannot write"), rows(tmp_path / "file" / "out"):
        pass


def test_standard_output_shows_each_row_at_once(capsys: pytest.CaptureFixture[str]) -> None:
    with json_rows("-") as write:
        write(predictions()[2])
        assert json.loads(capsys.readouterr().out)["image"] == "größe/猫.png"
        write(predictions()[4])
        assert json.loads(capsys.readouterr().out)["image"] == NAMES[4]
    with csv_rows("-", TASK, 1) as write:
        assert capsys.readouterr().out == "image,label,probability,error\n"
        write(predictions()[-1])
        assert capsys.readouterr().out == "b.jpg,,,b.jpg is empty (0 bytes)\n"
        write(predictions()[4])
        assert capsys.readouterr().out.startswith("\\udcff.png,")


def test_a_line_for_people_has_no_break_in_it() -> None:
    lines = [as_line(prediction, TASK) for prediction in predictions()]
    assert all("\n" not in line for line in lines)
    assert lines[-1] == "b.jpg: error: is empty (0 bytes)"
    assert lines[1].startswith('a b, "c".jpg: Uhu, großer ')


FORMULAS = (
    '=HYPERLINK("http://a.b","c")',
    "+1+cmd|' /C calc'!A0",
    "-2+3",
    "@SUM(A1)",
    "\t=1",
    "\r=1",
    "\N{FULLWIDTH EQUALS SIGN}1+1",
)


def test_a_spreadsheet_runs_no_cell(tmp_path: Path) -> None:
    task = task_for("segment", FORMULAS)
    with csv_rows(tmp_path / "out.csv", task_for("classify", FORMULAS), 1) as write:
        for row, name in enumerate(FORMULAS):
            answer = {"label": name, "probability": 0.5, "top": [{"label": name, "probability": 0.5}]}
            write(Prediction(name if row % 2 else "a.jpg", answer))
        write(Prediction("=b.jpg", error=UnreadableImage("=b.jpg", "empty", "is empty")))
    with csv_rows(tmp_path / "header.csv", task, 1):
        pass
    for file in ("out.csv", "header.csv"):
        with (tmp_path / file).open(encoding="utf-8", newline="") as opened:
            cells = [cell for row in csv.reader(opened) for cell in row]
        assert not any(cell.startswith(("=", "+", "-", "@", "\t", "\r", FORMULAS[-1][0])) for cell in cells)
        assert all(f"'{formula}" in cells for formula in FORMULAS)


@pytest.mark.parametrize("cell", [-1.5, "-1.5", "+2", "-1e-05", "a=b", "", "猫", 0])
def test_numbers_and_other_texts_are_written_as_they_are(cell: Any) -> None:
    assert no_formula(cell) == cell


def test_answers_on_a_terminal_are_harmless(monkeypatch: pytest.MonkeyPatch) -> None:
    label = "cat\x1b[2J\x9b31m"
    guess = {"label": label, "probability": 1.0}
    prediction = Prediction("a.jpg", {**guess, "top": [guess]})
    assert as_line(prediction, TASK).isprintable()
    terminal = io.StringIO()
    terminal.isatty = lambda: True  # type: ignore[method-assign]
    monkeypatch.setattr(sys, "stdout", terminal)
    for rows in (json_rows("-"), csv_rows("-", TASK, 1)):
        with rows as write:
            write(prediction)
    assert harmless(terminal.getvalue()) == terminal.getvalue()
