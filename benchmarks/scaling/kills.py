"""A Ray cluster of two machines, of which something is killed in each run: the bytes must be those of one process."""

from __future__ import annotations

import argparse
import random
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from benchmarks.machines import network
from benchmarks.scaling.cluster import VITRAIL, Cluster, make_work, merged, on_ray
from benchmarks.scaling.report import Report, keep, wait_until, working_folder
from vitrail.errors import VitrailError

VICTIMS = ("worker", "machine", "driver", "head's machine", "head", "cable")
LIMIT = 300.0  # seconds: a run that takes longer is stuck, is ended, and counts as such
MOST_BEGUN = 4
CABLE = 30.0  # seconds that it is pulled
WORKER = "ray::RayWorker"


@dataclass
class Run:
    """What was killed, what that hit, and how it went on."""

    victim: str
    hit: int = 0  # processes; 0 is a run that shows nothing
    begun: int = 0  # times
    stuck: int = 0  # of these
    seconds: float = 0.0
    same: bool = False
    why: str = ""


def kill(victim: str, cluster: Cluster, driver: subprocess.Popen[bytes], chance: random.Random) -> int:
    """One thing goes, and comes again where it would in life. How many processes it hit."""
    if victim == "worker":
        machine = chance.choice([cluster.head, cluster.node])
        return machine.kill(WORKER)
    if victim == "machine":
        hit = cluster.node.kill()
        cluster.start_node()
        return hit
    if victim == "driver":
        driver.kill()
        return 1
    if victim == "head's machine":  # with the driver; a Ray whose head is gone ends, and all of its nodes with it
        hit = cluster.head.kill()
        cluster.node.kill()
        return hit
    if victim == "head":  # under a driver that lives
        return cluster.head.kill("gcs_server")
    cluster.net.pull_cable(cluster.node)
    time.sleep(CABLE)
    cluster.net.pull_cable(cluster.node, up=True)
    return 1


def workers_of(cluster: Cluster) -> int:
    """On how many machines there are some."""
    return sum(bool(machine.processes_of(WORKER)) for machine in (cluster.head, cluster.node))


def done(out: Path) -> list[Path]:
    """The shards of which the output is there."""
    return [path for path in out.glob("0*") if path.suffix != ".claim"]


def wait_for_work(cluster: Cluster, driver: subprocess.Popen[bytes], out: Path, shards: float) -> None:
    """Until both machines work and so many shards are done."""
    wait_until(
        lambda: (workers_of(cluster) == 2 and len(done(out)) >= shards) or driver.poll() is not None,
        LIMIT,
    )


def disturbed_run(
    victim: str, cluster: Cluster, command: list[str], out: Path, chance: random.Random, shards: int
) -> Run:
    """Run the command until it ends by itself, with one thing killed in the first run, when some part of the shards
    is done."""
    run = Run(victim)
    cluster.repair()
    begun = time.monotonic()
    while run.begun < MOST_BEGUN:
        if run.begun:
            cluster.repair()
        driver = cluster.begin([*command, "--out", str(out)])
        run.begun += 1
        if run.begun == 1:
            wait_for_work(cluster, driver, out, chance.uniform(0, 0.8) * shards)
            running = driver.poll() is None
            hit = kill(victim, cluster, driver, chance)
            run.hit = hit if running else 0
        try:
            code = driver.wait(LIMIT)
        except subprocess.TimeoutExpired:
            run.stuck += 1
            driver.kill()
            driver.wait()
            continue
        # 1: some images could not be read; but so does Ray end a process whose head is gone
        if code in (0, 1) and len(done(out)) == shards:
            break
    run.seconds = time.monotonic() - begun
    return run


def compared(run: Run, out: Path, expected: bytes) -> Run:
    try:
        run.same = merged(out) == expected
    except (VitrailError, OSError) as error:
        run.why = str(error)
    return run


def kills(options: argparse.Namespace) -> Iterator[Report]:
    chance, runs = random.Random(options.seed), list[Run]()
    with working_folder() as folder, network(2) as net:
        model, manifest = make_work(folder, options.images, options.shard_size)
        command = [*VITRAIL, "embed", str(model), str(manifest), "--batch-size", "16"]
        subprocess.run([*command, "--processes", "1", "--out", str(folder / "single")], check=False)
        expected = merged(folder / "single")
        cluster = Cluster(net, folder)
        cluster.start_head()
        cluster.start_node()
        cluster.repair()
        pool = cluster.seconds_of([*command, "--processes", "2", "--out", str(folder / "pool")])
        whole = cluster.seconds_of([*on_ray(command, cluster), "--out", str(folder / "whole")])
        assert merged(folder / "pool") == expected == merged(folder / "whole"), "undisturbed runs differ"
        shards = -(-options.images // options.shard_size)
        undisturbed = f"Undisturbed: {pool:.0f} s in two processes of one machine, {whole:.0f} s on Ray."
        for number in range(options.runs):
            victim, out = VICTIMS[number % len(VICTIMS)], folder / f"run{number}"
            try:
                run = disturbed_run(victim, cluster, on_ray(command, cluster), out, chance, shards)
            except RuntimeError as error:  # Ray itself does not come up: the next run tries anew
                run = Run(victim, why=str(error))
            runs.append(compared(run, out, expected))
            print(f"run {number}: {run}", flush=True)
            if not runs[-1].same:
                keep(folder)
            yield report(runs, options, undisturbed)


def report(runs: list[Run], options: argparse.Namespace, undisturbed: str) -> Report:
    good, missed = sum(run.same for run in runs), sum(not run.hit for run in runs)
    rows = [
        f"| {victim} | {len(of)} | {sum(bool(run.hit) for run in of)} | {sum(run.same for run in of)} | "
        f"{max(run.begun for run in of)} | {sum(run.stuck for run in of)} | {max(run.seconds for run in of):.0f} s |"
        for victim in VICTIMS
        if (of := [run for run in runs if run.victim == victim])
    ]
    so_far = "" if len(runs) == options.runs else f" So far; {options.runs} were asked for."
    return Report(
        [
            f"Something is killed at random while `embed` runs: {good} of {len(runs)} runs ended with the bytes of one "
            f"process ({options.images:,} pictures, shards of {options.shard_size:,}).{so_far} {undisturbed} The two "
            "machines share the disk: a pulled cable cuts them off from each other, not from images and outputs. A "
            f"command that had not ended after {LIMIT:.0f} s was stopped and begun again.",
            "",
            "| what was killed | runs | it hit something | same bytes | begun at most | stopped | longest |",
            "|---|---|---|---|---|---|---|",
            *rows,
            *(f"\n{run.victim}: {run.why}" for run in runs if run.why),
        ],
        good == len(runs) and not missed,
    )
