"""Tables and errors: rich at a terminal, the same words in plain text elsewhere."""

from __future__ import annotations

import io
import re
import sys

import pytest

from vitrail.terminal import print_error, table

ROWS = [["", "precision", "recall"], ["猫 [bold]", "0.5", "1"], ["dog", "0.25", "0.125"]]


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def at_terminal(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    """From here on, standard output and error are a terminal."""
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "60")
    monkeypatch.delenv("NO_COLOR", raising=False)
    terminal = Terminal()
    monkeypatch.setattr(sys, "stdout", terminal)
    monkeypatch.setattr(sys, "stderr", terminal)
    return terminal


def without_codes(text: str) -> str:
    return re.sub(r"\x1b\[[^a-zA-Z]*[a-zA-Z]", "", text)


def test_an_error_is_one_line_whatever_is_in_it(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = at_terminal(monkeypatch)
    sentence = "there is no file [red]photo.jpg[/red]: " + 100 * "x"
    print_error(sentence)
    assert without_codes(terminal.getvalue()) == f"vitrail: {sentence}\n"
    assert terminal.getvalue() != f"vitrail: {sentence}\n"  # it has colour


def test_an_error_is_plain_elsewhere(capsys: pytest.CaptureFixture[str]) -> None:
    print_error("there is no file")
    assert capsys.readouterr().err == "vitrail: there is no file\n"


def test_a_table_has_the_same_cells_at_a_terminal_and_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    at_terminal(monkeypatch)
    drawn = table(ROWS)
    monkeypatch.setattr(sys, "stdout", io.StringIO())
    plain = table(ROWS)
    assert plain.splitlines() == [
        "              precision   recall",
        "  猫 [bold]         0.5        1",
        "  dog              0.25    0.125",
    ]
    assert [line.rstrip() for line in without_codes(drawn).splitlines()] == plain.splitlines()
    assert drawn != plain
