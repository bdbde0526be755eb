"""What a run says: a bar on a terminal, lines elsewhere, rows on disk."""

import io
import json
import re

import pytest

from vitrail.errors import VitrailError
from vitrail.training.run_log import RunLog, clock


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_a_terminal_gets_a_bar_and_a_file_gets_lines(tmp_path, monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setattr("vitrail.progress.INTERVAL", -1)
    terminal, plain = Terminal(), io.StringIO()
    for stream in (terminal, plain):
        progress = RunLog(stream, tmp_path / "metrics.jsonl")
        progress.best = "93.1 %"
        progress.step(5, 10, 1.25, 1234.0, 200.0)
        progress.say("epoch 1")
        progress.close()
    drawn = re.sub(r"\x1b\[[^a-zA-Z]*[a-zA-Z]", "", terminal.getvalue())
    assert "5 of 10 steps 1,234 images/s, 3 min left, loss 1.250, best 93.1 %" in drawn and "epoch 1\n" in drawn
    assert plain.getvalue() == "step 5 of 10: 1,234 images/s, 3 min left, loss 1.250, best 93.1 %\nepoch 1\n"


def test_lines_are_few_but_the_last_is_there():
    plain = io.StringIO()
    progress = RunLog(plain, None)
    for step in range(1, 101):
        progress.step(step, 100, 1.0, 10.0, 1.0)
    assert [line.split(":")[0] for line in plain.getvalue().splitlines()] == ["step 1 of 100", "step 100 of 100"]


def test_rows_are_appended(tmp_path):
    log = tmp_path / "metrics.jsonl"
    progress = RunLog(None, log)
    progress.record({"step": 1, "loss": 2.0})
    progress.record({"step": 2, "validation": {"accuracy": 0.5}})
    assert [json.loads(line)["step"] for line in log.read_text().splitlines()] == [1, 2]
    with pytest.raises(VitrailError, match="cannot write"):
        RunLog(None, tmp_path / "none" / "metrics.jsonl").record({"step": 1})


def test_clock():
    assert [clock(s) for s in (0.4, 89, 100, 3540, 3600, 7500)] == [
        "0 s",
        "89 s",
        "2 min",
        "59 min",
        "1 h 00 min",
        "2 h 05 min",
    ]
