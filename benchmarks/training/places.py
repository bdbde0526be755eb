"""Where things lie, and the options that all sub-commands share."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

BENCHMARKS = Path(__file__).resolve().parents[1]
REPOSITORY = BENCHMARKS.parent
RESULTS = BENCHMARKS / "results" / "train.md"
WORK = Path("~/.cache/vitrail-benchmarks")
VITRAIL = Path(sys.executable).with_name("vitrail")


def add_shared(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--work", type=Path, default=WORK, help=f"folder for data and runs (default {WORK})")
    parser.add_argument("--results", type=Path, default=RESULTS, help="the page that is written")
    parser.add_argument("--vitrail", type=Path, default=VITRAIL, help="the command (default: beside this Python)")


def dataset(work: Path, name: str) -> Path:
    """The prepared folder, or a sentence that says how to prepare it."""
    folder = work / name
    if not folder.is_dir():
        raise SystemExit(f"{folder} is not there: python benchmarks/train.py data {name} --work {work}")
    return folder


def count_images(folder: Path) -> int:
    return sum(1 for path in folder.rglob("*") if path.suffix in (".png", ".jpg"))
