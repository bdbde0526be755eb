"""`accuracy NAME --minutes M`: the accuracy on the test part that the real command reaches with its defaults."""

from __future__ import annotations

import argparse
import statistics

from training.places import count_images, dataset
from training.results import percent, write_section
from training.running import new_folder, vitrail_evaluate, vitrail_train

BARS = {"cifar10": (0.87, 30), "fashion-mnist": (0.93, 20)}  # accuracy, minutes on the wall clock


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", choices=("cifar10", "fashion-mnist", "flowers"))
    parser.add_argument("--minutes", type=float, required=True, help="what vitrail train is given")
    parser.add_argument("--seed", type=int, help="of vitrail train (default: its own)")


def run(arguments: argparse.Namespace) -> None:
    name, vitrail = arguments.name, arguments.vitrail
    data = dataset(arguments.work, name)
    seed = [] if arguments.seed is None else ["--seed", arguments.seed]
    trained = vitrail_train(
        vitrail, data, new_folder(arguments.work, name), ["--minutes", f"{arguments.minutes:g}", *seed]
    )
    results = vitrail_evaluate(vitrail, trained.folder / "model.safetensors", data)
    accuracy, images = float(results["metrics"]["accuracy"]), count_images(data / "test")
    speed = statistics.median(row["images_per_second"] for row in trained.rows)
    minutes = trained.seconds / 60
    rest = "" if arguments.seed is None else f", seed {arguments.seed}"
    lines = [
        f"`vitrail train {name} --minutes {arguments.minutes:g}`, all else by default{rest}.",
        "",
        "| test accuracy (95 % interval) | test images | wall time | images/s, median | epochs | bar |",
        "|---|---|---|---|---|---|",
        f"| {percent(accuracy, images)} | {images:,} | {minutes:.1f} min | {speed:,.0f} "
        f"| {trained.rows[-1]['epoch']:.1f} | {_against_bar(name, accuracy, minutes)} |",
    ]
    write_section(arguments.results, f"Accuracy: {name}, {arguments.minutes:g} minutes", lines)


def _against_bar(name: str, accuracy: float, minutes: float) -> str:
    if name not in BARS:
        return "the peer's, below or above"
    bar, allowed = BARS[name]
    held = "met" if accuracy >= bar and minutes <= allowed else "NOT met"
    return f"{100 * bar:.0f} % in {allowed} min: {held}"
