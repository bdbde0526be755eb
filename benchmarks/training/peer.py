"""`peer flowers --minutes M`: timm's ResNet-18 from scratch in the same wall time, on the same parts."""

from __future__ import annotations

import argparse

from training.places import dataset
from training.results import percent, write_section
from training.running import run_peer


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", choices=("flowers",))
    parser.add_argument(
        "--minutes", type=float, required=True, help="wall time until its training ends, imports included"
    )
    parser.add_argument("--size", type=int, default=128, help="pixels a side in training (default 128)")
    parser.add_argument("--lr", type=float, help="peak learning rate (default 0.1 x batch / 256)")
    parser.add_argument("--crop", type=float, default=0.5, help="smallest part of a photo's area that a crop keeps")
    parser.add_argument("--changes", action="store_true", help="one TrivialAugment change a photo")
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--seed", type=int, default=0)


def run(arguments: argparse.Namespace) -> None:
    data = dataset(arguments.work, arguments.name)
    lr = arguments.lr or 0.1 * arguments.batch_size / 256
    options = ["--data", data, "--minutes", arguments.minutes, "--size", arguments.size, "--lr", lr]
    options += ["--batch-size", arguments.batch_size, "--seed", arguments.seed]
    options += ["--crop", arguments.crop, *["--changes"] * arguments.changes]
    results = run_peer("resnet", options, arguments.work)
    images = results["test_images"]
    size, accuracy = max(results["accuracy"].items(), key=lambda pair: pair[1])
    others = ", ".join(f"{100 * value:.2f} % at {key} px" for key, value in results["accuracy"].items())
    lines = [
        f"timm `resnet18` from scratch on all {results['train_images']:,} training photos (vitrail holds a tenth out),",
        f"float32, channels last, glibc told to keep large blocks; {arguments.size} px, batch {arguments.batch_size},",
        f"SGD with Nesterov momentum, peak lr {lr:g}, weight decay 5e-4, smoothing 0.1, 5 % warm-up, cosine to 0 at",
        f"the end of the time; random resized crops ({arguments.crop:g} to 1), flips"
        f"{', one TrivialAugment change a photo' * arguments.changes}.",
        f"Tested at {others}: the better one counts, chosen on the test part in this peer's favour.",
        "",
        "| test accuracy (95 % interval) | at | test images | wall time | images/s | epochs |",
        "|---|---|---|---|---|---|",
        f"| {percent(accuracy, images)} | {size} px | {images:,} | {results['wall'] / 60:.1f} min "
        f"| {results['images_per_second']:,.0f} | {results['epochs']:.1f} |",
    ]
    recipe = "crops and flips" + " and TrivialAugment" * arguments.changes
    title = f"Peer: ResNet-18 on {arguments.name}, {arguments.minutes:g} minutes, {recipe}"
    write_section(arguments.results, title, lines, PACKAGES)


PACKAGES = ("torch", "timm", "pillow")
