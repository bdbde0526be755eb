"""How far work has come, for people who wait at a terminal: one bar, drawn by rich. Elsewhere nothing is drawn."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, TextIO

from vitrail.terminal import print_text
from vitrail.text import harmless

if TYPE_CHECKING:
    from rich.progress import Progress as RichProgress

Progress = Callable[[int, int], None]  # a function that is told how many are done, of how many

INTERVAL = 0.1  # seconds between two drawings
BAR_WIDTH = 16  # so that a line of training fits into 80 columns


class ProgressBar:
    """A bar that is gone when the work is done. Use it as a context, or `close` it.

    total None: it is not known how much there is. stream: where to draw; standard error unless told. enabled False: it
    counts, and draws nothing, as it does where the stream is no terminal.
    """

    def __init__(
        self,
        description: str = "",
        total: int | None = None,
        *,
        unit: str = "images",
        stream: TextIO | None = None,
        enabled: bool = True,
    ) -> None:
        self.description, self.total, self.unit = description, total, unit
        self.done = 0
        self.begun = time.perf_counter()
        self.stream = sys.stderr if stream is None else stream
        self.enabled = enabled and self.stream.isatty()
        self._drawn_at = self.begun
        self._display: RichProgress | None = None

    @property
    def seconds(self) -> float:
        """Seconds since the bar began."""
        return time.perf_counter() - self.begun

    def step(self) -> None:
        """One more is done; the bar shows how many a second."""
        self.update(self.done + 1, self.total, f"{(self.done + 1) / max(self.seconds, 1e-9):.1f} a second")

    def update(self, done: int, total: int | None = None, text: str = "") -> None:
        """So many of all are done; `text` is shown behind the bar."""
        self.done, self.total = done, total
        now = time.perf_counter()
        if self.enabled and (done == total or now - self._drawn_at >= INTERVAL):
            self._drawn_at = now
            self._draw(text)

    def print(self, line: str) -> None:
        """A line that stays, above the bar."""
        if self._display is not None:
            self._display.console.print(harmless(line), markup=False, highlight=False, soft_wrap=True)
        else:
            print_text(line, self.stream)

    def close(self) -> None:
        """Take the bar away; nothing happens if there is none."""
        if self._display is not None:
            self._display.stop()
            self._display = None

    def __enter__(self) -> ProgressBar:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _draw(self, text: str) -> None:
        if self._display is None:
            self._display = _rich_progress(self.stream)
            self._display.add_task(self.description, total=self.total, count="", text="")
            self._display.start()
        of_all = "" if self.total is None else f" of {self.total:,}"
        self._display.update(
            self._display.task_ids[0],
            completed=self.done,
            total=self.total,
            count=f"{self.done:,}{of_all} {self.unit}",
            text=text,
        )
        self._display.refresh()


def _rich_progress(stream: TextIO) -> RichProgress:
    """Drawn when it is told to, not by a thread of its own: workers are forked while it is there."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn

    return Progress(
        TextColumn("{task.description}", markup=False),
        BarColumn(BAR_WIDTH),
        TextColumn("{task.fields[count]}", markup=False),
        TextColumn("{task.fields[text]}", markup=False),
        console=Console(file=stream),
        auto_refresh=False,
        transient=True,
        redirect_stdout=False,
        redirect_stderr=False,
    )
