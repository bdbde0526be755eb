"""`throughput`: images a second of whole training pipelines, from files on disk to updated weights.

The contenders take turns, round after round, each alone in a fresh process: warm-up steps, then timed steps. All train
the same ViT with AdamW on random resized crops and flips of the same files: in float32, and where the CPU computes in
bfloat16 also in mixed precision. A row names its precision and is compared with the peers in the same one.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import statistics
import subprocess
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from training.places import count_images, dataset
from training.results import write_section
from training.running import new_folder, run_peer, vitrail_step_ends
from vitrail.model.precision import computes_bf16


@dataclass(frozen=True)
class Kind:
    image: int
    patch: int
    width: int
    depth: int
    heads: int
    batch: int


KINDS = {
    "cifar10": Kind(image=32, patch=4, width=192, depth=6, heads=3, batch=256),
    "flowers": Kind(image=224, patch=16, width=192, depth=12, heads=3, batch=32),  # Ti/16
}
PEERS = {
    "transformers": ("transformers `Trainer`", "hf_trainer"),
    "timm": ("timm, a plain loop", "timm_loop"),
}
HELD_OUT = 0.1  # vitrail's default beside a test part
FEWER_TOKENS = 0.7  # of the steps, vitrail's default
EVALUATIONS = 12  # vitrail evaluates so often in a run: it is given a long one, and stopped before the first of them
PRECISIONS = ("float32", "bfloat16")  # bfloat16: autocast, weights in float32
Settings = dict[str, dict[str, Any]]
Measured = dict[str, float]


class Row(NamedTuple):
    """A contender in a precision."""

    name: str
    precision: str


def vitrail_settings(kind: str, precision: str = "float32") -> Settings:
    """The settings file with which vitrail does what the peers do: the same network, optimizer and augmentation."""
    sizes = KINDS[kind]
    model = {"model": f"Ti/{sizes.patch}", "image_size": sizes.image, "stem": "linear", "pool": "cls"}
    model |= {"width": sizes.width, "depth": sizes.depth, "heads": sizes.heads}
    train = {"batch_size": sizes.batch, "optimizer": "adamw", "lr": 1e-3, "keep_tokens": 1.0, "smoothing": 0.0}
    train |= {"drop_path": 0.0, "mixup": 0.0, "cutmix": 0.0, "average": 0.0, "clip": 1.0, "precision": precision}
    augment = {"crop": 0.35, "flip": "horizontal", "policy": "none", "erase": 0.0}
    return {"model": model, "train": train, "augment": augment}


def default_settings(kind: str, precision: str = "float32", **changes: Any) -> Settings:
    """The same network and batch, all else vitrail's own recipe."""
    train = {"batch_size": KINDS[kind].batch, "precision": precision, **changes}
    return {"model": vitrail_settings(kind)["model"], "train": train}


OURS: dict[str, tuple[str, Callable[[str, str], Settings]]] = {
    "vitrail": ("vitrail", vitrail_settings),
    "default": ("vitrail, **default recipe**, its first 70 % of steps (fewer tokens)", default_settings),
    "default-all": (
        "vitrail, **default recipe**, its last steps (all tokens)",
        lambda kind, precision: default_settings(kind, precision, keep_tokens=1.0),
    ),
}


def to_toml(settings: Settings) -> str:
    sections = (
        (name, [f"{key} = {json.dumps(value)}" for key, value in keys.items()]) for name, keys in settings.items()
    )
    return "\n\n".join("\n".join([f"[{name}]", *lines]) for name, lines in sections) + "\n"


# ---- one round of one contender


def measure_vitrail(kind: str, row: Row, settings: Settings, arguments: argparse.Namespace) -> Measured:
    data = dataset(arguments.work, kind)
    folder = new_folder(arguments.work, f"throughput-{kind}-{row.name}-{row.precision}")
    file = folder.with_suffix(".toml")
    file.write_text(to_toml(settings))
    batch, last = KINDS[kind].batch, arguments.warm + arguments.steps
    epochs = EVALUATIONS * (last + 2) * batch / ((1 - HELD_OUT) * count_images(data / "train"))
    options = ["--settings", file, "--epochs", f"{epochs:.4f}"]
    ends = vitrail_step_ends(arguments.vitrail, data, folder, options, last)
    first, begin, end = min(ends), min(step for step in ends if step >= arguments.warm), max(ends)
    seconds = ends[end] - ends[begin]
    return {"images_per_second": (end - begin) * batch / seconds, "seconds": seconds, "first_step": ends[first]}


def measure_peer(kind: str, module: str, arguments: argparse.Namespace, precision: str = "float32") -> Measured:
    options: list[object] = ["--data", dataset(arguments.work, kind), "--precision", precision]
    for key, value in asdict(KINDS[kind]).items():
        options += [f"--{key}", value]
    options += ["--warm", arguments.warm, "--steps", arguments.steps, "--workers", arguments.workers]
    return run_peer(module, options + ["--keep-blocks"] * arguments.keep_blocks, arguments.work)


# ---- all rounds


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--kind", choices=(*KINDS, "all"), default="all")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument(
        "--warm", type=int, default=6, help="steps before the clock (default 6; the peers' queues hold 4)"
    )
    parser.add_argument("--steps", type=int, default=24, help="timed steps (default 24)")
    parser.add_argument("--workers", type=int, default=2, help="of the peers' DataLoader")
    parser.add_argument("--keep-blocks", action="store_true", help="give the peers vitrail's malloc setting too")
    parser.add_argument(
        "--precision",
        nargs="+",
        choices=PRECISIONS,
        help="default: float32, and bfloat16 too where this CPU computes in it",
    )
    parser.add_argument("--only", nargs="+", choices=(*OURS, *PEERS), help="some of the contenders")


def run(arguments: argparse.Namespace) -> None:
    if not arguments.only or "transformers" in arguments.only:
        install_accelerate(arguments.work)
    for kind in KINDS if arguments.kind == "all" else [arguments.kind]:
        runs = contenders(kind, arguments)
        rounds: dict[Row, list[Measured]] = {row: [] for row in runs}
        for number in range(arguments.rounds):
            for row, measure in runs.items():
                print(f"-- {kind}, round {number + 1} of {arguments.rounds}: {' in '.join(row)}", flush=True)
                rounds[row].append(measure())
        title = f"Throughput: {kind}" + (" (peers with vitrail's malloc setting)" if arguments.keep_blocks else "")
        write_section(arguments.results, title, page(kind, rounds, arguments), PACKAGES)


def precisions(arguments: argparse.Namespace) -> tuple[str, ...]:
    """Those that were asked for, or those in which this CPU computes: emulated bfloat16 is nobody's choice."""
    if arguments.precision:
        return tuple(arguments.precision)
    return PRECISIONS if computes_bf16("cpu") else PRECISIONS[:1]


def contenders(kind: str, arguments: argparse.Namespace) -> dict[Row, Callable[[], Measured]]:
    runs: dict[Row, Callable[[], Measured]] = {}
    for precision in precisions(arguments):
        for name, (_, settings) in OURS.items():
            row = Row(name, precision)
            runs[row] = partial(measure_vitrail, kind, row, settings(kind, precision), arguments)
        for name, (_, module) in PEERS.items():
            runs[Row(name, precision)] = partial(measure_peer, kind, module, arguments, precision)
    return {row: measure for row, measure in runs.items() if not arguments.only or row.name in arguments.only}


def page(kind: str, rounds: dict[Row, list[Measured]], arguments: argparse.Namespace) -> list[str]:
    sizes = KINDS[kind]
    lines = [
        f"{sizes.image} px, patch {sizes.patch}, {sizes.width} x {sizes.depth}, {sizes.heads} heads,",
        f"batch {sizes.batch}; {arguments.steps} steps after {arguments.warm},",
        f"medians of {arguments.rounds} interleaved rounds.",
        f"Peers decode in {arguments.workers} worker processes at every step. Vitrail may decode all before its",
        "first step and keep them: what that takes is in the last column, not in its images/s.",
        "The faster peer is the one in the same precision.",
        "",
        "| pipeline | precision | images/s | of each round | times the faster peer | first step done after |",
        "|---|---|---|---|---|---|",
    ]
    for precision in dict.fromkeys(row.precision for row in rounds):
        lines += _rows_in(
            precision, {row.name: measured for row, measured in rounds.items() if row.precision == precision}
        )
    return lines


def _rows_in(precision: str, rounds: dict[str, list[Measured]]) -> list[str]:
    """Of one precision: each of vitrail's rows beside the faster peer of the same round."""
    titles = {name: title for name, (title, _) in {**OURS, **PEERS}.items()}
    titles["whole"] = "vitrail, **default recipe**, a whole run: computed from these two"
    speeds = {name: [one["images_per_second"] for one in measured] for name, measured in rounds.items()}
    fastest = [max(values) for values in zip(*(speeds[name] for name in PEERS if name in speeds), strict=True)]
    if {"default", "default-all"} <= speeds.keys():
        pairs = zip(speeds["default"], speeds["default-all"], strict=True)
        speeds["whole"] = [1 / (FEWER_TOKENS / early + (1 - FEWER_TOKENS) / late) for early, late in pairs]
        rounds = {**rounds, "whole": rounds["default"]}
    lines = []
    for name, values in speeds.items():
        times = ""
        if fastest and name not in PEERS:
            times = f"**{statistics.median(ours / peer for ours, peer in zip(values, fastest, strict=True)):.2f}**"
        first = statistics.median(one["first_step"] for one in rounds[name])
        each = ", ".join(f"{value:,.1f}" for value in values)
        speed = f"{statistics.median(values):,.1f}"
        lines.append(f"| {titles[name]} | {precision} | {speed} | {each} | {times} | {first:.1f} s |")
    return lines


def install_accelerate(work: Path) -> None:
    """Trainer needs it, the project does not: it goes to the work folder, which the peers find."""
    if importlib.util.find_spec("accelerate") or (work / "python" / "accelerate").is_dir():
        return
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(work / "python")]
    subprocess.run([*command, "accelerate", "psutil"], check=True)


PACKAGES = ("torch", "timm", "transformers", "pillow")
