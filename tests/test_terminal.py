"""Tables and errors: rich at a terminal, the same words in plain text elsewhere."""

from __future__ import annotations

import io
import re
import sys

import pytest

from vitrail.progress import ProgressBar
from vitrail.terminal import print_error, print_text, table

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


HOSTILE = "cat\x1b]0;owned\x07\x1b[2J\x9b31m\rdog\u202e"


def is_harmless(text: str) -> bool:
    codes = without_codes(text)
    return not any(letter in codes for letter in "\x1b\x07\x9b\r\u202e") and "]0;owned" in codes


def test_what_a_terminal_would_obey_does_not_reach_it(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = at_terminal(monkeypatch)
    print_error(f"there is no class {HOSTILE}")
    print_text(f"classes: {HOSTILE}\nand more")
    print_text(table([["", "n"], [HOSTILE, "1"]]))
    ProgressBar(stream=terminal).print(f"epoch 1: {HOSTILE}")
    with ProgressBar("reading", total=2, stream=terminal) as bar:
        bar.update(2, 2)
        bar.print(f"epoch 2: {HOSTILE}")
    lines = [line for line in terminal.getvalue().splitlines() if "owned" in line]
    assert len(lines) == 5 and all(map(is_harmless, lines))
    assert "\x1b[1m" in terminal.getvalue()  # the header of the table is still bold


def test_a_cell_is_one_line_whatever_a_class_is_called() -> None:
    assert len(table([["class", "n"], ["cat\nvitrail: all is well", "1"]]).splitlines()) == 2


def test_a_stream_that_knows_few_letters(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    print_text("猫", stream)
    stream.seek(0)
    assert stream.read() == "\\u732b\n"
