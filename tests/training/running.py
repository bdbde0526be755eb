"""A set of pictures that a tiny model learns in a second, and ways to run the real command on it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
from PIL import Image

from tests.warm_process import ENVIRONMENT, Running, begin_torchrun, begin_vitrail, run_together, run_vitrail
from vitrail.training.settings import Settings

BIN = Path(sys.executable).parent
CLASSES = ("cat", "dog", "owl")
TINY = """
[data]
workers = {workers}
[model]
model = "mu/4"
image_size = 16
stem = "conv"
[train]
epochs = 5
batch_size = 16
mixup = 0.2
cutmix = 1.0
drop_path = {noise}
dropout = {noise}
average = 0.1
save_minutes = 0
"""


def write_pictures(folder: Path, each: int = 20, classes: tuple[str, ...] = CLASSES, side: int = 16) -> Path:
    """Noise with more of one colour for each class."""
    random = np.random.default_rng(0)
    for number, name in enumerate(classes):
        (folder / name).mkdir(parents=True, exist_ok=True)
        for place in range(each):
            pixels = random.integers(0, 120, (side, side, 3))
            pixels[..., number % 3] += 120
            Image.fromarray(pixels.astype(np.uint8)).save(folder / name / f"{place}.png")
    return folder


def tiny_settings(**changes: object) -> Settings:
    """Two epochs of a plain tiny model; `train__lr=1e-3` changes train.lr."""
    values = {"model.model": "mu/4", "model.image_size": 16, "train.epochs": 2.0, "train.batch_size": 16}
    changed = {name.replace("__", "."): value for name, value in changes.items()}
    return Settings().with_values(values | {"data.workers": 0} | changed)


def vitrail(*arguments: object, processes: int = 1, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    return run_vitrail(arguments, cwd) if processes == 1 else run_together(arguments, processes, cwd)


def begin(
    *arguments: object, processes: int = 1, restarts: int = 0, warm: bool = True
) -> Running | subprocess.Popen[str]:
    """Several processes are started by torchrun. restarts: how often it starts them again. warm: its code is run in the
    warm process; else it is started as users do."""
    if processes == 1:
        return begin_vitrail(arguments)
    if warm:
        return begin_torchrun(arguments, processes, restarts=restarts)
    torchrun = [str(BIN / "torchrun"), "--standalone", f"--nproc-per-node={processes}", f"--max-restarts={restarts}"]
    return subprocess.Popen(
        [*torchrun, "--no-python", str(BIN / "vitrail"), *map(str, arguments)],
        env=ENVIRONMENT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )


def wait_for(condition: Callable[[], bool], running: Running | subprocess.Popen[str]) -> None:
    deadline = time.monotonic() + 120
    while not condition():
        assert running.poll() is None, running.communicate()[0]
        assert time.monotonic() < deadline
        time.sleep(0.005)


def kill(running: Running | subprocess.Popen[str], number: int = signal.SIGKILL) -> str:
    """The whole group, as a power cut would; what it had printed."""
    os.killpg(running.pid, number)
    return running.communicate(timeout=60)[0]
