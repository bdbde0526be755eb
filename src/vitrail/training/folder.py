"""A run is a folder: what lies in it, and that only one process at a time writes there."""

from __future__ import annotations

import fcntl
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from vitrail.errors import VitrailError
from vitrail.files import write_text


class RunFolder:
    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.settings = self.path / "settings.toml"
        self.plan = self.path / "plan.json"
        self.metrics = self.path / "metrics.jsonl"
        self.model = self.path / "model.safetensors"
        self.report = self.path / "report.html"
        self.results = self.path / "results.json"
        self.samples = self.path / "samples"
        self.states = self.path / "checkpoint"
        self.tensorboard = self.path / "tensorboard"

    @property
    def holds_run(self) -> bool:
        return self.plan.exists()

    def open(self, resume: bool) -> None:
        """Make it ready, or say why not."""
        if resume and not self.holds_run:
            raise VitrailError(f"{self.path} holds no run to resume: leave out --resume to start one")
        if not resume and self.holds_run:
            raise VitrailError(f"{self.path} already holds a run: go on with --resume, or choose another --out")
        try:
            self.states.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise VitrailError(f"cannot write {self.path}: {error.strerror or error}") from None

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Held by one process; the system lets go of it however that process ends."""
        try:
            file = (self.path / ".lock").open("w")
        except OSError as error:
            raise VitrailError(f"cannot write {self.path}: {error.strerror or error}") from None
        with file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                raise VitrailError(f"another run is writing into {self.path}: choose another --out") from None
            for left in self.states.glob(".*.part"):  # by a run that was killed while it wrote
                left.unlink(missing_ok=True)
            yield

    def history(self) -> list[dict[str, Any]]:
        """The rows of metrics.jsonl; a last line that a crash cut off is left out."""
        rows = []
        if self.metrics.exists():
            for line in self.metrics.read_text(encoding="utf-8").splitlines():
                try:
                    rows.append(json.loads(line))
                except ValueError:
                    break
        return rows

    def forget_after(self, step: int) -> None:
        """Rows of steps that are about to be done again."""
        if self.metrics.exists():
            rows = [row for row in self.history() if row["step"] <= step]
            write_text(self.metrics, "".join(json.dumps(row) + "\n" for row in rows))
