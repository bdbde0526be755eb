"""Many images and many machines: what is killed, or slow, costs time and nothing else; and how much time.

    python benchmarks/scale.py kills        20 runs, 20,000 pictures; root, `ip` and Ray are needed
    python benchmarks/scale.py torchrun     training on two machines; root and `ip` are needed
    python benchmarks/scale.py overhead     the same work with and without Ray
    python benchmarks/scale.py full-disk    of one machine, and of all; root, `ip` and Ray are needed
    python benchmarks/scale.py slow-node    a machine ten times as slow as the other; root, `ip` and Ray are needed
    python benchmarks/scale.py catalogue    scheduling of 10 million images with workers of 1 ms an image

To see that it works: kills --runs 1 --images 200 --shard-size 10 --results /tmp/page.md

kills: two machines (network namespaces, benchmarks/machines.py) are a Ray cluster. In each run a worker, a machine, the
process that schedules, Ray's head or its machine is killed at a random moment; or a cable is pulled for 30 seconds.
What is killed is started again, and the same command is run until it ends by itself. Then the output is compared.

torchrun: a small model is trained on two such machines, of which one is killed five times. The weights are compared.

catalogue: a manifest of so many rows is written and scheduled for real, on workers that only say that they are done.
What the process that schedules takes of time and memory is compared with what the workers would take.

Each writes its section of benchmarks/results/scale.md, also while it is under way. The exit code is 1 where something
did not come out as it must.
"""

from __future__ import annotations

import argparse
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.scaling.catalogue import catalogue
from benchmarks.scaling.full_disk import full_disk
from benchmarks.scaling.kills import kills
from benchmarks.scaling.overhead import overhead
from benchmarks.scaling.report import Report
from benchmarks.scaling.slow_node import slow_node
from benchmarks.scaling.torchrun import torchrun
from benchmarks.training.results import write_section

RESULTS = Path(__file__).parent / "results" / "scale.md"
IMAGES = {"kills": 20_000, "catalogue": 10_000_000, "overhead": 20_000, "full-disk": 5_000, "slow-node": 20_000}
MEASUREMENTS: dict[str, Callable[[argparse.Namespace], Iterator[Report]]] = {
    "kills": kills,
    "catalogue": catalogue,
    "torchrun": torchrun,
    "overhead": overhead,
    "full-disk": full_disk,
    "slow-node": slow_node,
}


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("what", choices=tuple(MEASUREMENTS))
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument("--images", type=int, help="of the smallest set, where there are several")
    parser.add_argument("--shard-size", type=int, default=500)
    parser.add_argument("--workers", type=int, default=64)
    parser.add_argument("--kills", type=int, default=5, help="of the second machine, for torchrun")
    parser.add_argument("--epochs", type=int, default=60, help="for torchrun")
    parser.add_argument("--rounds", type=int, default=5, help="for overhead")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--results", type=Path, default=RESULTS, help="the page whose section is written")
    options = parser.parse_args()
    options.images = options.images or IMAGES.get(options.what)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that machines and folders are taken away
    packages = ("torch",) if options.what in ("catalogue", "torchrun") else ("torch", "ray")
    good = True
    for report in MEASUREMENTS[options.what](options):
        heading = "# Shards on several machines\n"
        write_section(options.results, options.what, report.lines, packages, heading)
        good = report.good
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
