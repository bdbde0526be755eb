"""What Ray costs: the same work in two processes, and by two workers of a Ray on the same machine.

Each is done at one size and at four times that size. The difference has no start in it, neither Ray's nor the model's.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import time
from collections.abc import Iterator

from benchmarks.scaling.cluster import ENVIRONMENT, VITRAIL, make_work, merged
from benchmarks.scaling.report import Report, working_folder

BAR = 1.10  # of the time without Ray
HOWS = {"two processes": ["--processes", "2"], "Ray": ["--processes", "2", "--ray"]}


def overhead(options: argparse.Namespace) -> Iterator[Report]:
    times: dict[tuple[str, int], list[float]] = {(how, size): [] for how in HOWS for size in (1, 4)}
    with working_folder() as folder:
        works = {size: make_work(folder / f"{size}", size * options.images, options.shard_size) for size in (1, 4)}
        outputs = set()
        for number in range(options.rounds):
            for (how, size), seconds in times.items():
                model, manifest = map(str, works[size])
                out = folder / f"{how}-{size}-{number}"
                begun = time.monotonic()
                code = subprocess.run(
                    [*VITRAIL, "predict", model, manifest, "--batch-size", "16", "--out", str(out), *HOWS[how]],
                    env={**os.environ, **ENVIRONMENT},
                ).returncode
                seconds.append(time.monotonic() - begun)
                assert code in (0, 1), f"{how}: exit code {code}"
                outputs.add((size, merged(out)))
            yield report(times, options, len(outputs) == 2)


def report(times: dict[tuple[str, int], list[float]], options: argparse.Namespace, same: bool) -> Report:
    rates, rows = {}, []
    for how in HOWS:
        small, large = times[how, 1], times[how, 4]
        rates[how] = statistics.median(long - short for short, long in zip(small, large, strict=True))
        start = statistics.median(small) - rates[how] / 3
        rows.append(
            f"| {how} | {statistics.median(small):.1f} s | {statistics.median(large):.1f} s | {rates[how]:.1f} s | "
            f"{start:.1f} s |"
        )
    ratio = rates["Ray"] / rates["two processes"]
    about = (
        f"`predict` on {options.images:,} and {4 * options.images:,} pictures in shards of {options.shard_size:,}, "
        f"{len(times['Ray', 1])} rounds in turn, medians. What the larger set has more takes {ratio:.2f} times as long "
        f"with Ray (bar: {BAR}). The outputs are {'the same' if same else '**others**'}."
    )
    head = ["| by | so many | four times as many | the difference | the start |", "|---|---|---|---|---|"]
    return Report([about, "", *head, *rows], ratio <= BAR and same)
