"""How long does one answer take from the shell, the process included?

    python -m benchmarks.coldstart PHOTO [--model S/16] [--rounds 9] [--write]

Each contender is a process that is started anew: `vitrail predict m.safetensors PHOTO` with torch, and with OpenVINO
and ONNX Runtime the first time (an empty cache folder) and the second. In every round each has its turn, so that a slow
moment of the machine hits all. What they are held against is a process that only imports torch, plus one forward pass
of the same network, the first of a process: no program that answers with torch can be faster than that.
"""

from __future__ import annotations

import argparse
import datetime
import importlib.metadata
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

RESULTS = Path(__file__).parent / "results" / "coldstart.md"
BASE = "`import torch`, plus one forward pass"
FIRST_PASS = """
import sys, time
from vitrail.inference.engine import Engine
engine = Engine.open(sys.argv[1])
images = engine.transform([engine.read(sys.argv[2]).pixels])
before = time.perf_counter()
engine.forward(images)
print(time.perf_counter() - before)
"""


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("photo", type=Path)
    arguments.add_argument("--model", default="S/16", help="a preset, or a model file")
    arguments.add_argument("--rounds", type=int, default=9)
    arguments.add_argument("--write", action="store_true", help=f"write {RESULTS.name}")
    options = arguments.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        seconds = measure(model_file(options.model, Path(folder)), options.photo, options.rounds, Path(folder))
    text = page(seconds, options)
    print(text)
    if options.write:
        RESULTS.write_text(text, encoding="utf-8")


def model_name(model: str) -> str:
    """A preset as it is, of a file its name: no page has a path of this machine."""
    return Path(model).name if Path(model).exists() else model


def model_file(model: str, folder: Path) -> Path:
    """The file, or that of a preset with fresh weights."""
    if Path(model).exists():
        return Path(model)
    from vitrail.inference.engine import open_model

    return open_model(model, untrained=True).save(folder / "m.safetensors")


def measure(model: Path, photo: Path, rounds: int, folder: Path) -> dict[str, list[float]]:
    """The seconds of each contender, round by round."""
    contenders: dict[str, Callable[[], float]] = {
        BASE: partial(import_and_pass, model, photo),
        "`vitrail predict`, torch": partial(wall, predict(model, photo, "torch")),
    }
    for engine in ("openvino", "onnxruntime"):
        command, name = predict(model, photo, engine), f"`vitrail predict --engine {engine}`"
        contenders[f"{name}, the first time"] = partial(first_time, command, folder / engine)
        contenders[f"{name}, the second time"] = partial(wall, command, folder / engine)
    seconds: dict[str, list[float]] = {name: [] for name in contenders}
    for number in range(rounds + 1):
        for name, run in contenders.items():
            taken = run()
            if number:  # the first round brings files into memory
                seconds[name].append(taken)
    return seconds


def import_and_pass(model: Path, photo: Path) -> float:
    first = [sys.executable, "-c", FIRST_PASS, str(model), str(photo)]
    forward = subprocess.run(first, check=True, capture_output=True, text=True).stdout
    return wall([sys.executable, "-c", "import torch"]) + float(forward)


def first_time(command: Sequence[str], cache: Path) -> float:
    shutil.rmtree(cache, ignore_errors=True)
    return wall(command, cache)


def predict(model: Path, photo: Path, engine: str) -> list[str]:
    return [sys.executable, "-m", "vitrail", "predict", str(model), str(photo), "--engine", engine]


def wall(command: Sequence[str], cache: Path | None = None) -> float:
    environment = os.environ if cache is None else {**os.environ, "VITRAIL_CACHE": str(cache)}
    before = time.perf_counter()
    subprocess.run(command, env=environment, check=True, capture_output=True)
    return time.perf_counter() - before


def page(seconds: dict[str, list[float]], options: argparse.Namespace) -> str:
    from vitrail.inference.bench.bench_text import machine_line

    today = datetime.datetime.now(tz=datetime.UTC).date()
    versions = ", ".join(f"{name} {importlib.metadata.version(name)}" for name in ("torch", "openvino", "onnxruntime"))
    lines = [
        "# From the shell to the first answer",
        "",
        f"{today}, {machine_line()}, Python {sys.version.split()[0]}, {versions}.",
        f"`python -m benchmarks.coldstart PHOTO --model {model_name(options.model)} --rounds {options.rounds}`: "
        f"{model_name(options.model)}, one photo,",
        "a new process each time, interleaved; medians, and ratios as the median over the rounds. The bar for torch is",
        "1.3. With a graph the second start imports no torch (a test holds that) and must be faster than the first.",
        "",
        "| | seconds | times the first row | slowest and fastest |",
        "|---|---|---|---|",
    ]
    for name, taken in seconds.items():
        ratio = statistics.median(one / base for one, base in zip(taken, seconds[BASE], strict=True))
        lines.append(
            f"| {name} | {statistics.median(taken):.2f} | {ratio:.2f} | {max(taken):.2f} to {min(taken):.2f} |"
        )
    return "\n".join([*lines, ""])


if __name__ == "__main__":
    main()
