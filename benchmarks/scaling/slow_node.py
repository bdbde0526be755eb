"""A machine that is ten times as slow as the other: the faster one does more shards, and the bytes are the same."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path

from benchmarks.machines import Machine, network
from benchmarks.scaling.cluster import VITRAIL, Cluster, make_work, merged, on_ray
from benchmarks.scaling.kills import WORKER
from benchmarks.scaling.report import Report, keep, working_folder

STOPPED, RUNNING = 0.9, 0.1  # seconds in turn
LIMIT = 1200.0


@contextlib.contextmanager
def slowed(machine: Machine) -> Iterator[None]:
    """Its workers are stopped nine tenths of the time."""
    ended = threading.Event()

    def slow() -> None:
        while not ended.is_set():
            workers = machine.processes_of(WORKER)
            signal_all(workers, signal.SIGSTOP)
            ended.wait(STOPPED)
            signal_all(workers, signal.SIGCONT)
            ended.wait(RUNNING)

    thread = threading.Thread(target=slow)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def signal_all(processes: list[int], number: int) -> None:
    for pid in processes:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


def count_claims(out: Path, seen: dict[str, str]) -> dict[str, str]:
    """The same with who works on which shard now."""
    for claim in out.glob("*.claim"):
        with contextlib.suppress(OSError, ValueError, KeyError):
            seen[claim.name] = json.loads(claim.read_text())["host"]
    return seen


def slow_node(options: argparse.Namespace) -> Iterator[Report]:
    with working_folder() as folder, network(2) as net:
        model, manifest = make_work(folder, options.images, options.shard_size)
        command = [*VITRAIL, "predict", str(model), str(manifest), "--batch-size", "16"]
        cluster = Cluster(net, folder)
        cluster.start_head()
        cluster.start_node()
        cluster.repair()
        whole = cluster.seconds_of([*on_ray(command, cluster), "--out", str(folder / "whole")])
        seen, slow = dict[str, str](), cluster.node.name
        out, begun = folder / "slow", time.monotonic()
        driver = cluster.begin([*on_ray(command, cluster), "--out", str(out)])
        while driver.poll() is None and slow not in count_claims(out, seen).values():
            time.sleep(0.02)
        with slowed(cluster.node):  # from its first shard on; else the other would have done all before it starts
            while driver.poll() is None and time.monotonic() - begun < LIMIT:
                count_claims(out, seen)
                time.sleep(0.02)
        seconds, ended = time.monotonic() - begun, driver.poll() in (0, 1)
        driver.kill()
        same = ended and merged(out) == merged(folder / "whole")
        if not same:
            keep(folder)
    by_slow = sum(host == slow for host in seen.values())
    shards = -(-options.images // options.shard_size)
    bar = 2 * whole + 2 * whole / shards * (STOPPED + RUNNING) / RUNNING
    text = (
        f"The worker of one of two machines runs a tenth of the time (SIGSTOP). `predict` on {options.images:,} "
        f"pictures in {shards} shards {'took' if ended else 'did not end in'} {seconds:.0f} s, undisturbed "
        f"{whole:.0f} s (bar: {bar:.0f} s, twice that and one shard of the slow machine: no shard is begun twice, so a "
        f"last slow one is waited for). As far as claims were seen, the slow machine did {by_slow} shards, the other "
        f"{len(seen) - by_slow}. The bytes are {'the same' if same else '**others**'}."
    )
    yield Report([text], same and by_slow > 0 and seconds <= bar)
