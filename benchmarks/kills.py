"""Processes that are killed at random moments: what they leave behind is whole, and what comes of it is the same.

    python benchmarks/kills.py               200 kills, some minutes on one core
    python benchmarks/kills.py --kills 9     to see that it works

Three victims, each with a third of the kills, by SIGKILL at a moment drawn from the time that they take undisturbed, or
as soon as a file is being written:

  training   `vitrail train`, then `--resume`, killed again and again until it ends: weights, rows of metrics.jsonl and
             results.json are those of a run that was never stopped, and no checkpoint is ever half there
  writers    `convert` and `predict --csv` and `--json` over older files: each file is at every moment the older one or
             the new one; the next run makes the new one
  the cache  images decoded into a file on disk, killed on the way, and at times the file is cut short: the next run has
             the very pixels

The page is benchmarks/results/kills.md.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import json
import os
import platform
import random
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from tests.training.running import TINY, write_pictures
from tests.warm_process import Running, begin_vitrail
from vitrail.data.loading.cache import ArrayCache, Shape, keep_in_file, keep_in_memory
from vitrail.model.presets import preset
from vitrail.model.vit import ViT
from vitrail.training.checkpointing import Checkpoints, read_state
from vitrail.weights.checkpoint import Checkpoint
from vitrail.weights.preprocessing import Preprocessing

RESULTS = Path(__file__).parent / "results" / "kills.md"
CLOCKS = ("seconds", "images_per_second")  # what two equal runs differ by
SHAPE = Shape(48, 48, 3)


class Tally:
    """What came of the kills of one victim."""

    def __init__(self, victim: str) -> None:
        self.victim = victim
        self.counts: Counter[str] = Counter()

    def fail(self, what: str) -> None:
        self.counts["failed"] += 1
        print(f"{self.victim}: {what}", file=sys.stderr, flush=True)


# ---- killing


def killed(running: Running, seconds: float, chance: random.Random, folders: Iterable[Path]) -> bool:
    """Kill it at a random moment of so many seconds, or just after a file is begun in one of the folders. False: it had
    ended before."""
    end = time.monotonic() + chance.uniform(0, seconds)
    waits_for_file = chance.random() < 0.5
    while running.poll() is None and time.monotonic() < end:
        if waits_for_file and any(next(folder.glob(".*.part"), None) for folder in folders if folder.is_dir()):
            time.sleep(chance.uniform(0, 0.003))
            break
        time.sleep(0.0005)
    if running.poll() is not None:
        return False
    with contextlib.suppress(ProcessLookupError):
        os.killpg(running.pid, signal.SIGKILL)
    return running.wait(60) == -signal.SIGKILL


def finished(arguments: list[object], tally: Tally) -> float:
    """Run a command to its end; the seconds that it took."""
    began = time.monotonic()
    running = begin_vitrail(arguments)
    said, _ = running.communicate(300)
    if running.returncode:
        tally.fail(f"{' '.join(map(str, arguments))}: {said[-500:]}")
    return time.monotonic() - began


# ---- training


def train(folder: Path, kills: int, chance: random.Random) -> Tally:
    tally = Tally("training")
    data = write_pictures(folder / "data")
    (folder / "tiny.toml").write_text(TINY.format(workers=0, noise=0.1))
    settings = ["--settings", folder / "tiny.toml"]
    whole = folder / "whole"
    finished(["train", data, "--out", folder / "warm", *settings], tally)
    seconds = finished(["train", data, "--out", whole, *settings], tally)
    while tally.counts["kills"] < kills:
        run = folder / f"run-{tally.counts['ended']}"
        train_until_it_ends(["train", data, "--out", run], settings, tally, chance, seconds)
        if outcome(run) != outcome(whole):
            tally.fail(f"{run} ended with something else than {whole}")
        tally.counts["ended"] += 1
        tally.counts["left over"] += len([*run.rglob(".*.part")])
        shutil.rmtree(run)
    return tally


def train_until_it_ends(
    command: list[object], settings: list[object], tally: Tally, chance: random.Random, seconds: float
) -> None:
    run = Path(str(command[-1]))
    while True:
        resumes = (run / "plan.json").exists()
        running = begin_vitrail([*command, "--resume"] if resumes else [*command, *settings])
        if not killed(running, 1.1 * seconds, chance, (run, run / "checkpoint")):
            said, _ = running.communicate()
            if running.returncode == 0:
                return
            tally.fail(f"{run}: {said[-500:]}")
            return
        tally.counts["kills"] += 1
        for half in unreadable(run):
            tally.fail(f"{half} is half there")


def unreadable(run: Path) -> Iterator[Path]:
    """Files under their own name that are not whole."""
    states = Checkpoints(run / "checkpoint")
    for path in (*map(states.path, states.steps()), run / "checkpoint" / "best.safetensors"):
        try:
            if path.exists():
                read_state(path)
        except Exception:
            yield path
    for path in (run / "plan.json", run / "results.json"):
        try:
            if path.exists():
                json.loads(path.read_text())
        except ValueError:
            yield path


def outcome(run: Path) -> Any:
    """What a run ends with, but for the clock."""
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    rows = [{name: value for name, value in line.items() if name not in CLOCKS} for line in lines]
    results = json.loads((run / "results.json").read_text())
    return tensors_of(run / "model.safetensors"), rows, results, (run / "report.html").exists()


def tensors_of(path: Path) -> dict[str, bytes]:
    from safetensors.numpy import load_file

    return {name: tensor.tobytes() for name, tensor in load_file(path).items()}


# ---- writers


def save_model(path: Path, seed: int) -> Path:
    """Some megabytes, so that writing takes a moment."""
    torch.manual_seed(seed)
    config = preset("Ti/16", classes=2, image_size=32, depth=4)
    return Checkpoint(ViT(config), Preprocessing(size=(32, 32)), "classify", ["cat", "dog"]).save(path)


def write(folder: Path, kills: int, chance: random.Random) -> Tally:
    tally = Tally("writers")
    data, target = write_pictures(folder / "data", 4), folder / "target"
    models = [save_model(folder / f"{seed}.safetensors", seed) for seed in range(2)]

    def commands(model: Path) -> list[list[object]]:
        return [
            ["convert", model, target, "--to", "transformers"],
            ["convert", model, target / "ours.safetensors"],
            ["predict", model, data, "--csv", target / "answers.csv"],
            ["predict", model, data, "--json", target / "answers.json"],
        ]

    target.mkdir()
    seconds, contents = [0.0] * 4, []
    for model in models:
        seconds = [finished(command, tally) for command in commands(model)]
        contents.append(files_in(target))
    for number in range(10**6):
        if tally.counts["kills"] >= kills:
            break
        restore(target, contents[0])
        command, usual = commands(models[1])[number % 4], seconds[number % 4]
        if killed(begin_vitrail(command), usual, chance, (target,)):
            tally.counts["kills"] += 1
        check_old_or_new(files_in(target), contents, tally)
        finished(command, tally)
        changed = {name for name, content in files_in(target).items() if content != contents[0][name]}
        if any(files_in(target)[name] != contents[1][name] for name in changed):
            tally.fail(f"{' '.join(map(str, command))} wrote something else after a kill")
        tally.counts["ended"] += 1
        tally.counts["left over"] += len([*target.glob(".*.part")])
    return tally


def files_in(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir() if not path.name.startswith(".")}


def restore(folder: Path, files: dict[str, bytes]) -> None:
    shutil.rmtree(folder)
    folder.mkdir()
    for name, content in files.items():
        (folder / name).write_bytes(content)


def check_old_or_new(files: dict[str, bytes], contents: list[dict[str, bytes]], tally: Tally) -> None:
    for name, content in files.items():
        if content not in (contents[0][name], contents[1][name]):
            tally.fail(f"{name} is neither the older nor the new one")
    if files.keys() != contents[0].keys():
        tally.fail(f"there are {sorted(files)}")


# ---- the cache

FILL = """
from pathlib import Path
from vitrail.data.loading.cache import Shape, keep_in_file
keep_in_file([Path(path) for path in {paths!r}], Shape({height}, {width}, {channels}), Path({folder!r}), 2)
"""


def cache(folder: Path, kills: int, chance: random.Random) -> Tally:
    tally = Tally("the cache")
    paths = sorted(write_pictures(folder / "data", 60, side=40).rglob("*.png"))
    expected, kept = keep_in_memory(paths, SHAPE, 2), folder / "cache"
    code = FILL.format(
        paths=[str(path) for path in paths],
        folder=str(kept),
        height=SHAPE.height,
        width=SHAPE.width,
        channels=SHAPE.channels,
    )
    began = time.monotonic()
    begin_code(code, folder).communicate()
    seconds = time.monotonic() - began
    while tally.counts["kills"] < kills:
        shutil.rmtree(kept, ignore_errors=True)
        for _ in range(chance.randint(1, 3)):  # one after the other, until one ends
            if not killed(begin_code(code, folder), seconds, chance, (kept,)):
                break
            tally.counts["kills"] += 1
        if chance.random() < 0.3:
            cut_short(kept, chance, tally)
        if not same_pixels(keep_in_file(paths, SHAPE, kept, 2), expected):
            tally.fail("other pixels after a kill")
        tally.counts["ended"] += 1
        tally.counts["left over"] += len([*kept.glob(".*.part")])
    return tally


def begin_code(code: str, folder: Path) -> Running:
    return Running({"code": code, "cwd": str(folder)}, apart=False)


def cut_short(folder: Path, chance: random.Random, tally: Tally) -> None:
    """As a full disk or a failing one might."""
    files = sorted(folder.glob("*.npy")) if folder.is_dir() else []
    if files:
        file = chance.choice(files)
        os.truncate(file, chance.randrange(file.stat().st_size))
        tally.counts["cut short"] += 1


def same_pixels(one: ArrayCache, other: ArrayCache) -> bool:
    return np.array_equal(one.pixels, other.pixels) and np.array_equal(one.sizes, other.sizes)


# ---- all of it

VICTIMS: dict[str, Callable[[Path, int, random.Random], Tally]] = {"training": train, "writers": write, "cache": cache}


def run(kills: int, seed: int) -> list[Tally]:
    tallies, left = [], kills
    for number, victim in enumerate(VICTIMS.values()):
        share = -(-left // (len(VICTIMS) - number))
        with tempfile.TemporaryDirectory(prefix="kills-") as folder:
            tallies.append(victim(Path(folder), share, random.Random(seed + number)))
        left -= share
    return tallies


def page(tallies: list[Tally], options: argparse.Namespace, seconds: float) -> list[str]:
    total = sum(tally.counts["kills"] for tally in tallies)
    failed = sum(tally.counts["failed"] for tally in tallies)
    return [
        "# Killed at random moments",
        "",
        f"{datetime.datetime.now(datetime.UTC):%Y-%m-%d %H:%M} UTC, {platform.machine()}, torch {torch.__version__}. "
        f"`python benchmarks/kills.py --kills {options.kills} --seed {options.seed}`: {total} kills by SIGKILL in "
        f"{seconds / 60:.0f} minutes.",
        "",
        f"**{failed}** ended with something else than undisturbed, or left a file that is half there.",
        "",
        "| victim | kills | then ended | with something else, or half a file | cut short by us | unfinished files |",
        "|---|---|---|---|---|---|",
        *(
            f"| {tally.victim} | {tally.counts['kills']} | {tally.counts['ended']} | {tally.counts['failed']} "
            f"| {tally.counts['cut short']} | {tally.counts['left over']} |"
            for tally in tallies
        ),
        "",
        "Training ends bit-equal: weights, metrics.jsonl but for its clock, and results.json. A writer's file is the",
        "older or the new one at every moment, and the new one after the next run. The cache gives the same pixels.",
        "Unfinished files have names that begin with a dot. A run removes its own at once, others go a day later.",
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args()
    began = time.monotonic()
    tallies = run(options.kills, options.seed)
    lines = page(tallies, options, time.monotonic() - began)
    print("\n".join(lines))
    options.out.write_text("\n".join(lines) + "\n")
    sys.exit(any(tally.counts["failed"] for tally in tallies))


if __name__ == "__main__":
    main()
