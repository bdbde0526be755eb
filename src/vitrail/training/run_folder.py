"""A run is a folder: what lies in it, and that only one process at a time writes there."""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from vitrail.errors import VitrailError
from vitrail.files import holding_lock, read_text, remove_unfinished, write_text
from vitrail.inference.calibration.calibration_file import calibration_file
from vitrail.text import parsed_json


class RunFolder:
    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.settings = self.path / "settings.toml"
        self.plan = self.path / "plan.json"
        self.metrics = self.path / "metrics.jsonl"
        self.model = self.path / "model.safetensors"
        self.calibration = calibration_file(self.model)
        self.report = self.path / "report.html"
        self.results = self.path / "results.json"
        self.samples = self.path / "samples"
        self.checkpoints = self.path / "checkpoint"
        self.tensorboard = self.path / "tensorboard"
        self.lock = self.path / ".lock"
        self.started = self.path / ".torchrun"  # the start of torchrun that writes here, see `torchrun_start`

    @property
    def holds_run(self) -> bool:
        return self.plan.exists()

    def is_of(self, start: str | None) -> bool:
        """Whether it holds the run of this start of torchrun, which began it and starts its processes again."""
        return start is not None and self.holds_run and self.started.exists() and read_text(self.started) == start

    @contextmanager
    def held(self, resume: bool, start: str | None = None) -> Iterator[None]:
        """Make the folder and hold its lock. An error before there is a plan leaves nothing of it behind. start: the
        start of torchrun whose run this is from now on."""
        created = self.open(resume)
        try:
            with self.locked():
                if start is not None:
                    write_text(self.started, start)
                yield
        except BaseException:
            if not self.holds_run:
                self._remove(created)
            raise

    def open(self, resume: bool) -> list[Path]:
        """Make the folder, or say why not; the folders that were created, innermost first."""
        if resume and not self.holds_run:
            raise VitrailError(f"{self.path} holds no run to resume: leave out --resume to start one")
        if not resume and self.holds_run:
            raise VitrailError(f"{self.path} already holds a run: go on with --resume, or choose another --out")
        missing = [folder for folder in (self.checkpoints, *self.checkpoints.parents) if not folder.exists()]
        try:
            self.checkpoints.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise VitrailError(f"cannot write {self.path}: {error.strerror or error}") from None
        return missing

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Held by one process; the system releases it however that process ends."""
        with holding_lock(self.lock, f"another run is writing into {self.path}: choose another --out"):
            for folder in (self.path, self.checkpoints, self.samples):
                remove_unfinished(folder)  # only we write here
            yield

    def _remove(self, created: list[Path]) -> None:
        """Delete what an unused folder holds of ours, and the folders that were created for it, if they are empty."""
        if self.path in created:
            shutil.rmtree(self.tensorboard, ignore_errors=True)
            for file in (self.settings, self.calibration, self.started):
                file.unlink(missing_ok=True)
        with suppress(OSError):
            self.lock.unlink(missing_ok=True)
            for folder in created:
                folder.rmdir()

    def history(self) -> list[dict[str, Any]]:
        """The rows of metrics.jsonl; a last line that a crash cut off is left out."""
        rows: list[dict[str, Any]] = []
        lines = read_text(self.metrics).splitlines() if self.metrics.exists() else []
        for number, line in enumerate(lines, 1):
            try:
                row = parsed_json(line)
            except (ValueError, RecursionError):
                if number == len(lines):
                    break
                row = None
            if not _is_row(row):
                raise VitrailError(f"{self.metrics}: line {number} is no row of a run: take it out")
            rows.append(row)
        return rows

    def forget_after(self, step: int) -> None:
        """Drop the rows of steps that are about to be done again."""
        if self.metrics.exists():
            rows = [row for row in self.history() if row["step"] <= step]
            write_text(self.metrics, "".join(json.dumps(row) + "\n" for row in rows))


def _is_row(row: Any) -> bool:
    """Numbers by name, as `loop.py` records them, with those of an evaluation inside; null where there was none."""
    if not isinstance(row, dict) or type(row.get("step")) is not int:
        return False
    validation = row.get("validation", {})
    if not isinstance(validation, dict) or ("validation" not in row and row.get("best")):
        return False
    epoch = row.get("epoch")
    if {"loss", "validation"} & row.keys() and not (isinstance(epoch, int | float) and math.isfinite(epoch)):
        return False
    values = {**validation, **row, "validation": None}.values()
    return all(value is None or isinstance(value, int | float) for value in values)
