"""A bar at a terminal, and nothing elsewhere."""

from __future__ import annotations

import io
import sys

import pytest

from vitrail import progress
from vitrail.progress import ProgressBar


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture(autouse=True)
def wide(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "120")
    monkeypatch.setattr(progress, "INTERVAL", -1)


def test_it_counts_and_cleans_up_at_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    with ProgressBar(total=2) as bar:
        bar.step()
        bar.step()
    assert "1 of 2 images" in terminal.getvalue() and "2 of 2 images" in terminal.getvalue()
    hidden, shown, cleared = "\x1b[?25l", "\x1b[?25h", "\x1b[2K"
    assert terminal.getvalue().startswith(hidden) and terminal.getvalue().endswith(cleared)
    assert terminal.getvalue().count(shown) == 1  # the cursor is there again
    assert bar.done == 2 and bar.seconds > 0


@pytest.mark.parametrize("stream", [io.StringIO(), Terminal()])
def test_it_is_silent_elsewhere_and_when_unwanted(monkeypatch: pytest.MonkeyPatch, stream: io.StringIO) -> None:
    monkeypatch.setattr(sys, "stderr", stream)
    with ProgressBar(enabled=not stream.isatty()) as bar:
        bar.step()
    assert stream.getvalue() == "" and bar.done == 1


def test_lines_stay_above_the_bar_and_are_taken_as_they_are() -> None:
    terminal = Terminal()
    with ProgressBar("training", stream=terminal) as bar:
        bar.update(1, 9, "loss [1.0]")
        bar.print("epoch 1: [CLS] " + 150 * "x")
    assert "loss [1.0]" in terminal.getvalue()
    assert "epoch 1: [CLS] " + 150 * "x" + "\n" in terminal.getvalue()  # not broken at the edge: it may be copied


def test_an_error_leaves_no_bar_behind() -> None:
    terminal = Terminal()
    with pytest.raises(KeyboardInterrupt), ProgressBar("checking", stream=terminal) as bar:
        bar.update(1, 9)
        raise KeyboardInterrupt
    assert "checking" in terminal.getvalue() and "\x1b[?25h" in terminal.getvalue()


def test_a_dumb_terminal_gets_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "dumb")
    terminal = Terminal()
    with ProgressBar("checking", stream=terminal) as bar:
        bar.update(1, 9)
    assert terminal.getvalue().strip() == ""


def test_few_drawings_cost_little_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "INTERVAL", 1000.0)
    terminal = Terminal()
    with ProgressBar(total=100, stream=terminal) as bar:
        for _ in range(100):
            bar.step()
    assert "100 of 100" in terminal.getvalue() and "50 of 100" not in terminal.getvalue()
