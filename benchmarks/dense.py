"""Detection and segmentation on real pictures, from scratch, against a peer that is given the same time.

    python benchmarks/dense.py detect --minutes 60          blood cells (BCCD): vitrail train, AP50 on the test part
    python benchmarks/dense.py detect-peer --minutes 60     transformers' YOLOS-tiny
    python benchmarks/dense.py segment --minutes 60         street scenes (CamVid): vitrail train, mIoU on the test part
    python benchmarks/dense.py segment-peer --minutes 60    a plain small U-Net
    python benchmarks/dense.py segment-large --minutes 60 --window 8    CamVid at twice the side that the last `segment`
                                                            chose, attention in windows of 8 patches; 0: full attention

`--data` is the folder that holds bccd/ and camvid/. Nothing else should run meanwhile.
"""

from __future__ import annotations

import argparse
import json
import resource
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from training.places import BENCHMARKS, REPOSITORY, add_shared
from training.results import write_section
from training.running import Run, new_folder, run_peer, vitrail_train

RESULTS = BENCHMARKS / "results" / "dense.md"
HEADING = "# Detection and segmentation on real pictures\n\nEach section says when, where and by which command.\n"
CLASSES, IGNORE = 11, 11  # of CamVid
POINTS = 12  # of the curve over time


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    for name, run in COMMANDS.items():
        command = commands.add_parser(name)
        command.add_argument("--minutes", type=float, required=True)
        command.add_argument("--data", type=Path, default=REPOSITORY.parent / "shared" / "data")
        if run is segment_large:
            command.add_argument("--window", type=int, required=True, help="patches a side; 0: full attention")
            command.add_argument("--times", type=int, default=2, help="as many times the side (default 2)")
        add_shared(command)
        command.set_defaults(run=run, results=RESULTS)
    given = parser.parse_args()
    given.work = given.work.expanduser().resolve()
    given.work.mkdir(parents=True, exist_ok=True)
    given.run(given)


def detect(given: argparse.Namespace) -> None:
    options = ["--minutes", f"{given.minutes:g}"]
    trained = vitrail_train(given.vitrail, given.data / "bccd", new_folder(given.work, "bccd"), options)
    write_vitrail(given, trained, "Detection: BCCD, Vitrail", "AP50", bar=0.60)


def segment(given: argparse.Namespace) -> None:
    settings = given.work / "camvid.toml"
    settings.write_text(f"[data]\nignore = {IGNORE}\n", encoding="utf-8")
    options = ["--minutes", f"{given.minutes:g}", "--settings", settings]
    trained = vitrail_train(given.vitrail, given.data / "camvid", new_folder(given.work, "camvid"), options)
    write_vitrail(given, trained, "Segmentation: CamVid, Vitrail", "mIoU")


def segment_large(given: argparse.Namespace) -> None:
    """The default model at a larger size: what windows cost and bring against full attention, and against today's."""
    run = _last_run(given.work, "camvid")
    chosen = tomllib.loads((run / "settings.toml").read_text(encoding="utf-8"))
    usual = {"image_width": chosen["model"]["image_size"], **chosen["model"]}
    height, width = (given.times * usual[name] for name in ("image_size", "image_width"))
    settings = given.work / "camvid-large.toml"
    values = f"image_size = {height}\nimage_width = {width}\npatch_size = {usual['patch_size']}"
    settings.write_text(
        f"[data]\nignore = {IGNORE}\n[model]\n{values}\nattention_window = {given.window}\n", encoding="utf-8"
    )
    options = ["--minutes", f"{given.minutes:g}", "--settings", settings]
    trained = vitrail_train(given.vitrail, given.data / "camvid", new_folder(given.work, "large"), options)
    attention = f"windows of {given.window} patches" if given.window else "full attention"
    how = (
        f"`vitrail train --minutes {given.minutes:g}` at {width} x {height} px, {given.times} times the side that the "
        f"default chose in its run, {attention}; measured on the test part. Peak memory "
        f"{resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1e6:.2f} GB. The default's run, "
        f"{chosen['train']['minutes']:g} min at {usual['image_width']} x {usual['image_size']} px: mIoU "
        f"{json.loads((run / 'results.json').read_text(encoding='utf-8'))['metrics']['mIoU']:.3f}."
    )
    title = f"Segmentation: CamVid at {given.times} times the side, {attention}"
    write_vitrail(given, trained, title, "mIoU", how=how)


def _last_run(work: Path, name: str) -> Path:
    """The folder of the last run of this name that was measured."""
    runs = sorted((work / "runs").glob(f"{name}-*/results.json"))
    if not runs:
        raise SystemExit(f"there is no run {name}-* in {work / 'runs'}: python benchmarks/dense.py segment comes first")
    return runs[-1].parent


def detect_peer(given: argparse.Namespace) -> None:
    options = ["--data", given.data / "bccd", "--minutes", given.minutes]
    write_peer(
        given, "Detection: BCCD, transformers' YOLOS-tiny from scratch", "AP50", run_peer("yolos", options, given.work)
    )


def segment_peer(given: argparse.Namespace) -> None:
    options = ["--data", given.data / "camvid", "--minutes", given.minutes, "--classes", CLASSES, "--ignore", IGNORE]
    write_peer(given, "Segmentation: CamVid, U-Net from scratch", "mIoU", run_peer("unet", options, given.work))


def write_vitrail(
    given: argparse.Namespace, trained: Run, title: str, metric: str, bar: float | None = None, how: str = ""
) -> None:
    results = json.loads((trained.folder / "results.json").read_text(encoding="utf-8"))
    value, (low, high) = results["metrics"][metric], results["intervals"][metric]
    against = "the peer's, in its section"
    if bar is not None:
        against = f"{bar:.2f} in 60 min: {'met' if value >= bar else 'NOT met'}"
    lines = [
        how or f"`vitrail train --minutes {given.minutes:g}`, all else by default; measured on the test part.",
        "",
        f"| {metric} (95 % interval) | test images | wall time | images/s | epochs | bar |",
        "|---|---|---|---|---|---|",
        f"| **{value:.3f}** ({low:.3f} to {high:.3f}) | {results['images']} | {trained.seconds / 60:.1f} min "
        f"| {trained.rows[-1]['images_per_second']:.1f} | {trained.rows[-1]['epoch']:.1f} | {against} |",
        "",
        f"{metric} on the validation part over time: {curve(trained.folder, metric)}.",
        "",
        "Each class: " + ", ".join(_class(row, metric) for row in results["per_label"]) + ".",
    ]
    write_section(given.results, title, lines, heading=HEADING)


def curve(folder: Path, metric: str) -> str:
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    measured = [row for row in rows if "validation" in row]
    chosen = measured[:: max(1, len(measured) // POINTS)]
    return ", ".join(f"{row['seconds'] / 60:.1f} min {row['validation'][metric]:.3f}" for row in chosen)


def _class(row: Mapping[str, Any], metric: str) -> str:
    value = row["AP50" if metric == "AP50" else "iou"]
    return f"{row['label']} " + ("-" if value is None else f"{value:.3f}")


def write_peer(given: argparse.Namespace, title: str, metric: str, results: Mapping[str, Any]) -> None:
    lines: Sequence[str] = [
        f"| {metric} | test images | wall time | images/s | epochs | parameters |",
        "|---|---|---|---|---|---|",
        f"| **{results[metric]:.3f}** | {results['test_images']} | {results['wall'] / 60:.1f} min "
        f"| {results['images_per_second']:.1f} | {results['epochs']:.1f} | {results['parameters']:,} |",
    ]
    write_section(given.results, title, lines, heading=HEADING)


COMMANDS = {
    "detect": detect,
    "detect-peer": detect_peer,
    "segment": segment,
    "segment-large": segment_large,
    "segment-peer": segment_peer,
}

if __name__ == "__main__":
    main()
