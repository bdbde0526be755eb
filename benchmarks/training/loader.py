"""`loader`: images a second that vitrail's feeding alone sustains at 224 px, against what training an S/16 consumes."""

from __future__ import annotations

import argparse


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--seconds", type=float, default=20.0, help="how long each of the two is timed")


def run(arguments: argparse.Namespace) -> None:
    """TO BE WRITTEN once the feeding has an API (src/vitrail/data/): batches of the flowers at 224 px taken as fast as
    they come, decoded anew and from the cache; beside it the images/s of `vitrail train --model S/16` on them, read as
    in `throughput`. `training.results.write_section` writes the section."""
    raise SystemExit("loader: not written yet; nothing was measured")
