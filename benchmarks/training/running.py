"""Starting the real command and the peers, each alone in a process of its own, and reading what they leave behind."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from training.places import BENCHMARKS

Row = dict[str, float]
POLL = 0.02  # seconds between looks at metrics.jsonl


@dataclass
class Run:
    """A `vitrail train` that has ended."""

    folder: Path
    rows: list[Row]  # of metrics.jsonl
    seconds: float  # wall clock, from start to end of the process


def new_folder(work: Path, name: str) -> Path:
    (work / "runs").mkdir(parents=True, exist_ok=True)
    return work / "runs" / f"{name}-{time.strftime('%Y%m%d-%H%M%S')}"


def vitrail_train(vitrail: Path, data: Path, folder: Path, options: Sequence[object], verb: str = "train") -> Run:
    """verb: train, or pretrain."""
    command = [str(part) for part in (vitrail, verb, data, "--out", folder, *options)]
    print("$", shlex.join(command), flush=True)
    start = time.perf_counter()
    code = subprocess.run(command).returncode
    seconds = time.perf_counter() - start
    rows = _rows(folder)
    if code or not rows:
        raise SystemExit(f"vitrail {verb} ended with code {code} and {len(rows)} rows of metrics")
    return Run(folder, rows, seconds)


def vitrail_step_ends(
    vitrail: Path, data: Path, folder: Path, options: Sequence[object], last: int
) -> dict[int, float]:
    """When each step's row appeared, in seconds since the process started; it is stopped at a row of step `last` or on.

    Timed from outside, as the peers are: what the loop says of itself is not taken on trust.
    """
    command = [str(part) for part in (vitrail, "train", data, "--out", folder, *options)]
    print("$", shlex.join(command), flush=True)
    start, size = time.perf_counter(), 0
    ends: dict[int, float] = {}
    log = folder / "metrics.jsonl"
    process = subprocess.Popen(command)
    try:
        while process.poll() is None and max(ends, default=0) < last:
            time.sleep(POLL)
            if log.exists() and (now := log.stat().st_size) != size:
                size, seen = now, time.perf_counter() - start
                for row in _rows(folder):
                    ends.setdefault(int(row["step"]), seen)
    finally:
        _stop(process)
    if max(ends, default=0) < last:
        raise SystemExit(f"vitrail train ended with code {process.returncode} before a row of step {last}")
    return ends


def _stop(process: subprocess.Popen[bytes]) -> None:
    """Politely, then not."""
    if process.poll() is None:
        process.terminate()
        try:
            process.wait(120)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _rows(folder: Path) -> list[Row]:
    """Rows of training steps; a last line that is still being written is left out."""
    path = folder / "metrics.jsonl"
    complete = path.read_text().rpartition("\n")[0] if path.exists() else ""
    rows = [json.loads(line) for line in complete.splitlines()]
    return [row for row in rows if row.get("step") and "images_per_second" in row]


def vitrail_evaluate(vitrail: Path, model: Path, data: Path) -> dict[str, Any]:
    command = [str(part) for part in (vitrail, "evaluate", model, data, "--part", "test", "--json")]
    print("$", shlex.join(command), flush=True)
    return json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout)


def train_and_measure(vitrail: Path, data: Path, folder: Path, options: Sequence[object]) -> dict[str, Any]:
    """A whole `vitrail train`, and what its model scores on the test part."""
    run = vitrail_train(vitrail, data, folder, options)
    measured = vitrail_evaluate(vitrail, folder / "model.safetensors", data)
    return {
        "accuracy": measured["metrics"]["accuracy"],
        "test_images": measured["images"],
        "epochs": run.rows[-1]["epoch"],
        "wall": run.seconds,
    }


def run_peer(module: str, options: Sequence[object], work: Path) -> dict[str, Any]:
    """Run `python -m peers.MODULE`; its last line is JSON. `wall` is added, from outside."""
    command = [sys.executable, "-m", f"peers.{module}", *map(str, options)]
    print("$", shlex.join(command), flush=True)
    paths = [str(work / "python"), os.environ.get("PYTHONPATH", "")]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, paths)), "STARTED": repr(time.time())}
    start, lines = time.perf_counter(), []
    with subprocess.Popen(command, cwd=BENCHMARKS, env=environment, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        for line in process.stdout:
            lines.append(line)
            print(" ", line, end="", flush=True)
    if process.returncode or not lines:
        raise SystemExit(f"peers.{module} ended with code {process.returncode}")
    return json.loads(lines[-1]) | {"wall": time.perf_counter() - start}
