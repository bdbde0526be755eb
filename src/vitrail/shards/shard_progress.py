"""How far a job has come over all of its workers: a bar on a terminal, a line a minute in a log."""

from __future__ import annotations

import time
from collections.abc import Callable

from vitrail.progress import ProgressBar
from vitrail.text import counted

INTERVAL = 60.0  # seconds between two lines where there is no terminal


class ShardProgress:
    """Counts of shards and images. `before` is what was done when it began: that says nothing about speed."""

    def __init__(self, shards: int, images: int, *, clock: Callable[[], float] = time.perf_counter) -> None:
        self.shards, self.images = shards, images
        self.done = self.retried = self.failed = self.before = 0
        self.images_done = self.images_before = self.errors = 0
        self._bar = ProgressBar("shards", images, unit="images")
        self._clock, self._begun = clock, clock()
        self._said = self._begun

    def skipped(self, images: int, errors: int) -> None:
        """A shard that another run has done."""
        self.before += 1
        self.images_before += images
        self._count(images, errors)

    def ended(self, images: int, errors: int) -> None:
        """A shard that is done now."""
        self._count(images, errors)
        self._show()

    def tried_again(self) -> None:
        """A shard that failed and will have another try."""
        self.retried += 1
        self._show()

    def gave_up(self) -> None:
        """A shard that failed too often."""
        self.failed += 1
        self._show()

    @property
    def rate(self) -> float:
        """Images a second, of this run."""
        return (self.images_done - self.images_before) / max(self._clock() - self._begun, 1e-9)

    def text(self) -> str:
        """'12 of 40 shards, 310.5 images/s, 1 tried again, 6 min left'."""
        parts = [f"{self.done:,} of {counted(self.shards, 'shard')}", f"{self.rate:,.1f} images/s"]
        if self.before:
            parts.append(f"{self.before:,} done before")
        if self.retried:
            parts.append(f"{self.retried:,} tried again")
        if self.failed:
            parts.append(f"{self.failed:,} failed")
        left = self.images - self.images_done
        if self.rate and left:
            parts.append(f"{duration(left / self.rate)} left")
        return ", ".join(parts)

    def line(self, text: str) -> None:
        """A line that stays."""
        self._bar.print(text)

    def close(self) -> None:
        """Take the bar away."""
        self._bar.close()

    def _count(self, images: int, errors: int) -> None:
        self.done += 1
        self.images_done += images
        self.errors += errors

    def _show(self) -> None:
        self._bar.update(self.images_done, self.images, self.text())
        now = self._clock()
        if not self._bar.enabled and now - self._said >= INTERVAL:
            self._said = now
            self.line(self.text())


def duration(seconds: float) -> str:
    """'40 s', '6 min', '2 h 5 min', '3 days'."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    if minutes < 90:
        return f"{minutes} min"
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours < 48 else counted(round(hours / 24), "day")
