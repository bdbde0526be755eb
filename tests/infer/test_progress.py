"""A count at a terminal, and nothing elsewhere."""

from __future__ import annotations

import io
import sys

import pytest

from vitrail.infer import progress
from vitrail.infer.progress import Counter


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_it_counts_and_cleans_up_at_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setattr(progress, "_EVERY", -1)
    with Counter(2) as counter:
        counter.step()
        counter.step()
    assert "1 of 2 images" in terminal.getvalue() and "2 of 2 images" in terminal.getvalue()
    assert terminal.getvalue().endswith("\r\x1b[K")
    assert counter.done == 2 and counter.seconds > 0


@pytest.mark.parametrize("stream", [io.StringIO(), Terminal()])
def test_it_is_silent_elsewhere_and_when_unwanted(monkeypatch: pytest.MonkeyPatch, stream: io.StringIO) -> None:
    monkeypatch.setattr(sys, "stderr", stream)
    with Counter(wanted=not stream.isatty()) as counter:
        counter.step()
    assert stream.getvalue() == "" and counter.done == 1
