"""What a run says and keeps while it goes: lines, a bar on a terminal, metrics.jsonl, TensorBoard."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TextIO

from vitrail.errors import VitrailError
from vitrail.progress import ProgressBar
from vitrail.terminal import print_text

LINE_SECONDS = 20.0  # between plain lines


class RunLog:
    """Everything said about a run on the way. A silent one, for the processes that are not the main one, has no
    stream and no file."""

    def __init__(self, stream: TextIO | None, log: Path | None, tensorboard: Path | None = None) -> None:
        self.stream, self.log = stream, log
        self.board = _board(tensorboard) if tensorboard is not None else None
        self.best = ""
        self._line_at = 0.0
        self._bar: ProgressBar | None = None

    def say(self, text: str) -> None:
        if self._bar is not None:
            self._bar.print(text)
        elif self.stream is not None:
            print_text(text, self.stream)

    def record(self, row: dict[str, Any]) -> None:
        """One row of metrics.jsonl, on disk before the next step."""
        if self.log is not None:
            try:
                with self.log.open("a", encoding="utf-8") as file:
                    file.write(json.dumps(row) + "\n")
            except OSError as error:
                raise VitrailError(f"cannot write {self.log}: {error.strerror or error}") from None
        if self.board is not None:
            numbers = {**row, **row.get("validation", {})} if "validation" in row else row
            where = "validation" if "validation" in row else "train"
            for name, value in numbers.items():
                if isinstance(value, int | float) and name not in ("step", "best"):
                    self.board.add_scalar(f"{where}/{name}", value, row["step"])

    def step(self, done: int, steps: int, loss: float, speed: float, seconds_left: float) -> None:
        """After a step: the bar moves, or a line is due."""
        if self.stream is None:
            return
        text = f"{speed:,.0f} images/s, {clock(seconds_left)} left, loss {loss:.3f}"
        text += f", best {self.best}" if self.best else ""
        if self.stream.isatty():
            self._bar_of("", "steps").update(done, steps, text)
        elif time.monotonic() - self._line_at >= LINE_SECONDS or done == steps:
            self._line_at = time.monotonic()
            print_text(f"step {done:,} of {steps:,}: {text}", self.stream)

    def counter(self, what: str) -> Callable[[int, int], None] | None:
        """For work on many files before the first step."""
        if self.stream is None or not self.stream.isatty():
            return None

        def show(done: int, total: int) -> None:
            self._bar_of(what, "").update(done, total)
            if done >= total:
                self._close_bar()

        return show

    def close(self) -> None:
        self._close_bar()
        if self.board is not None:
            self.board.close()

    def _bar_of(self, description: str, unit: str) -> ProgressBar:
        """The one bar at a time: another piece of work has another."""
        if self._bar is None or self._bar.description != description:
            self._close_bar()
            self._bar = ProgressBar(description, unit=unit, stream=self.stream)
        return self._bar

    def _close_bar(self) -> None:
        if self._bar is not None:
            self._bar.close()
            self._bar = None


def clock(seconds: float) -> str:
    """'8 s', '3 min', '2 h 05 min'."""
    if seconds < 90:
        return f"{max(seconds, 0):.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 60 else f"{minutes // 60} h {minutes % 60:02d} min"


def standard(log: Path | None, tensorboard: Path | None, main: bool) -> RunLog:
    return RunLog(sys.stdout, log, tensorboard) if main else RunLog(None, None)


def _board(folder: Path) -> Any:
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        raise VitrailError("train.tensorboard needs the package: pip install 'vitrail[tensorboard]'") from None
    return SummaryWriter(str(folder))
