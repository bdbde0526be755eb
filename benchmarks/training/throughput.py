"""`throughput`: images a second of whole training pipelines, from files on disk to updated weights.

The contenders take turns, round after round, each alone in a fresh process: warm-up steps, then timed steps. All train
the same ViT in float32 with AdamW on random resized crops and flips of the same files.
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
from typing import Any

from training.places import count_images, dataset
from training.results import write_section
from training.running import new_folder, run_peer, vitrail_step_ends


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
Settings = dict[str, dict[str, Any]]
Measured = dict[str, float]


def vitrail_settings(kind: str) -> Settings:
    """The settings file with which vitrail does what the peers do: the same network, optimizer and augmentation."""
    sizes = KINDS[kind]
    model = {"model": f"Ti/{sizes.patch}", "image_size": sizes.image, "stem": "linear", "pool": "cls"}
    model |= {"width": sizes.width, "depth": sizes.depth, "heads": sizes.heads}
    train = {"batch_size": sizes.batch, "optimizer": "adamw", "lr": 1e-3, "keep_tokens": 1.0, "smoothing": 0.0}
    train |= {"drop_path": 0.0, "mixup": 0.0, "cutmix": 0.0, "average": 0.0, "clip": 1.0, "precision": "float32"}
    augment = {"crop": 0.35, "flip": "horizontal", "policy": "none", "erase": 0.0}
    return {"model": model, "train": train, "augment": augment}


def default_settings(kind: str, **changes: Any) -> Settings:
    """The same network and batch, all else vitrail's own recipe."""
    return {"model": vitrail_settings(kind)["model"], "train": {"batch_size": KINDS[kind].batch, **changes}}


OURS: dict[str, tuple[str, Callable[[str], Settings]]] = {
    "vitrail": ("vitrail", vitrail_settings),
    "default": ("vitrail, **default recipe**, its first 70 % of steps (fewer tokens)", default_settings),
    "default-all": (
        "vitrail, **default recipe**, its last steps (all tokens)",
        lambda kind: default_settings(kind, keep_tokens=1.0),
    ),
}


def to_toml(settings: Settings) -> str:
    sections = (
        (name, [f"{key} = {json.dumps(value)}" for key, value in keys.items()]) for name, keys in settings.items()
    )
    return "\n\n".join("\n".join([f"[{name}]", *lines]) for name, lines in sections) + "\n"


# ---- one round of one contender


def measure_vitrail(kind: str, name: str, settings: Settings, arguments: argparse.Namespace) -> Measured:
    data, folder = dataset(arguments.work, kind), new_folder(arguments.work, f"throughput-{kind}-{name}")
    file = folder.with_suffix(".toml")
    file.write_text(to_toml(settings))
    batch, last = KINDS[kind].batch, arguments.warm + arguments.steps
    epochs = EVALUATIONS * (last + 2) * batch / ((1 - HELD_OUT) * count_images(data / "train"))
    options = ["--settings", file, "--epochs", f"{epochs:.4f}"]
    ends = vitrail_step_ends(arguments.vitrail, data, folder, options, last)
    first, begin, end = min(ends), min(step for step in ends if step >= arguments.warm), max(ends)
    seconds = ends[end] - ends[begin]
    return {"images_per_second": (end - begin) * batch / seconds, "seconds": seconds, "first_step": ends[first]}


def measure_peer(kind: str, module: str, arguments: argparse.Namespace) -> Measured:
    options: list[object] = ["--data", dataset(arguments.work, kind)]
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
    parser.add_argument("--only", nargs="+", choices=(*OURS, *PEERS), help="some of the contenders")


def run(arguments: argparse.Namespace) -> None:
    if not arguments.only or "transformers" in arguments.only:
        install_accelerate(arguments.work)
    for kind in KINDS if arguments.kind == "all" else [arguments.kind]:
        runs = contenders(kind, arguments)
        rounds: dict[str, list[Measured]] = {name: [] for name in runs}
        for number in range(arguments.rounds):
            for name, measure in runs.items():
                print(f"-- {kind}, round {number + 1} of {arguments.rounds}: {name}", flush=True)
                rounds[name].append(measure())
        title = f"Throughput: {kind}" + (" (peers with vitrail's malloc setting)" if arguments.keep_blocks else "")
        write_section(arguments.results, title, page(kind, rounds, arguments), PACKAGES)


def contenders(kind: str, arguments: argparse.Namespace) -> dict[str, Callable[[], Measured]]:
    found: dict[str, Callable[[], Measured]] = {}
    for name, (_, settings) in OURS.items():
        found[name] = partial(measure_vitrail, kind, name, settings(kind), arguments)
    for name, (_, module) in PEERS.items():
        found[name] = partial(measure_peer, kind, module, arguments)
    return {name: measure for name, measure in found.items() if not arguments.only or name in arguments.only}


def page(kind: str, rounds: dict[str, list[Measured]], arguments: argparse.Namespace) -> list[str]:
    sizes = KINDS[kind]
    titles = {name: title for name, (title, _) in {**OURS, **PEERS}.items()}
    lines = [
        f"{sizes.image} px, patch {sizes.patch}, {sizes.width} x {sizes.depth}, {sizes.heads} heads,",
        f"batch {sizes.batch}, float32; {arguments.steps} steps after {arguments.warm},",
        f"medians of {arguments.rounds} interleaved rounds.",
        f"Peers decode in {arguments.workers} worker processes at every step. Vitrail may decode all before its",
        "first step and keep them: what that takes is in the last column, not in its images/s.",
        "",
        "| pipeline | images/s | of each round | times the faster peer | first step done after |",
        "|---|---|---|---|---|",
    ]
    speeds = {name: [one["images_per_second"] for one in measured] for name, measured in rounds.items()}
    peers = [values for name, values in speeds.items() if name in PEERS]
    fastest = [max(values) for values in zip(*peers, strict=True)]
    if {"default", "default-all"} <= speeds.keys():
        pairs = zip(speeds["default"], speeds["default-all"], strict=True)
        speeds["whole"] = [1 / (FEWER_TOKENS / early + (1 - FEWER_TOKENS) / late) for early, late in pairs]
        rounds = {**rounds, "whole": rounds["default"]}
        titles["whole"] = "vitrail, **default recipe**, a whole run: computed from these two"
    for name, values in speeds.items():
        ratio = (
            statistics.median(ours / theirs for ours, theirs in zip(values, fastest, strict=True)) if peers else None
        )
        first = statistics.median(one["first_step"] for one in rounds[name])
        each = ", ".join(f"{value:,.1f}" for value in values)
        times = "" if ratio is None or name in PEERS else f"**{ratio:.2f}**"
        lines.append(f"| {titles[name]} | {statistics.median(values):,.1f} | {each} | {times} | {first:.1f} s |")
    return lines


def install_accelerate(work: Path) -> None:
    """Trainer needs it, the project does not: it goes to the work folder, which the peers find."""
    if importlib.util.find_spec("accelerate") or (work / "python" / "accelerate").is_dir():
        return
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(work / "python")]
    subprocess.run([*command, "accelerate", "psutil"], check=True)


PACKAGES = ("torch", "timm", "transformers", "pillow")
