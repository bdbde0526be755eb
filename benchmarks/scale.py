"""Shards on several machines, of which some are killed: the result is always that of one process, byte for byte.

    python benchmarks/scale.py kills                      20 runs, 20,000 pictures; root, `ip` and Ray are needed
    python benchmarks/scale.py kills --runs 1 --images 200    to see that it works
    python benchmarks/scale.py catalogue                  scheduling of 10 million images with workers of 1 ms an image

kills: two machines (network namespaces, benchmarks/machines.py) are a Ray cluster. In each run a worker, a machine, the
process that schedules or Ray's head is killed at a random moment; or a cable is pulled for 30 seconds. What is killed
is started again, and the same command is run again until it ends by itself. Then the merged output is compared.

catalogue: a manifest of so many rows is written and scheduled for real, on workers that only say that they are done.
What the process that schedules takes of time and memory is compared with what the workers would take.

The page is benchmarks/results/scale.md.
"""

from __future__ import annotations

import argparse
import datetime
import heapq
import platform
import random
import resource
import secrets
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from PIL import Image

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.machines import Machine, Network, network
from vitrail.data.manifest.manifest_file import Manifest, write_manifest
from vitrail.data.manifest.manifest_row import ManifestRow
from vitrail.model.presets import preset
from vitrail.model.vit import ViT
from vitrail.shards.merge_shards import merge_shards
from vitrail.shards.pools.worker_pool import ShardFailure, WorkerPool
from vitrail.shards.run_shard import DONE, ShardOutcome
from vitrail.shards.scheduling import schedule
from vitrail.shards.shard_progress import ShardProgress
from vitrail.weights.checkpoint import Checkpoint
from vitrail.weights.preprocessing import Preprocessing

RESULTS = Path(__file__).parent / "results" / "scale.md"
VICTIMS = ("worker", "machine", "driver", "head", "cable")
PORT = 6379
VITRAIL = [sys.executable, "-m", "vitrail"]
ENVIRONMENT = {
    "OMP_NUM_THREADS": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_AUTH_MODE": "token",
    "RAY_AUTH_TOKEN": secrets.token_hex(32),  # of this cluster alone
}


# ---- killed at random


class Cluster:
    """A Ray of two machines: the head, and a node that comes and goes."""

    def __init__(self, net: Network, folder: Path) -> None:
        self.net, self.log = net, folder / "ray.log"
        self.head, self.node = net.machines

    def start_head(self) -> None:
        self._ray(self.head, "--head", f"--port={PORT}", "--include-dashboard=false")

    def start_node(self) -> None:
        self._ray(self.node, f"--address={self.head.address}:{PORT}")

    def stop(self) -> None:
        self.head.kill()
        self.node.kill()

    def _ray(self, machine: Machine, *how: str) -> None:
        program = str(Path(sys.executable).parent / "ray")
        limits = ["--num-cpus=1", "--object-store-memory=80000000", "--disable-usage-stats"]
        machine.begin(
            [program, "start", *how, f"--node-ip-address={machine.address}", *limits, "--block"],
            self.log,
            **ENVIRONMENT,
        )
        time.sleep(5)


def make_work(folder: Path, images: int, shard_size: int) -> tuple[Path, Path]:
    """A tiny model, and a manifest of pictures of which each hundredth is broken."""
    config = preset("mu/16", classes=3)
    torch.manual_seed(0)
    model = Checkpoint(ViT(config), Preprocessing(size=config.image_size), "classify", ["cat", "dog", "owl"])
    noise = np.random.default_rng(0)
    for number in range(images):
        path = folder / "photos" / f"{number // 1000}" / f"{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(noise.integers(0, 256, (32, 32, 3), np.uint8)).save(path)
        if number % 100 == 99:
            path.write_bytes(path.read_bytes()[:100])
    manifest = folder / "manifest"
    subprocess.run(
        [*VITRAIL, "manifest", str(folder / "photos"), "--out", str(manifest), "--shard-size", str(shard_size)],
        check=True,
    )
    return model.save(folder / "model.safetensors"), manifest


def kill(victim: str, cluster: Cluster, driver: subprocess.Popen[bytes], chance: random.Random) -> None:
    """One thing goes, and comes again where it would in life."""
    if victim == "worker":
        chance.choice([cluster.head, cluster.node]).kill("ray::RayWorker")
    elif victim == "machine":
        cluster.node.kill()
        cluster.start_node()
    elif victim == "driver":
        driver.kill()
    elif victim == "head":
        cluster.stop()  # a Ray whose head is gone ends, and all of its nodes with it
        cluster.start_head()
        cluster.start_node()
    else:
        cluster.net.pull_cable(cluster.node)
        time.sleep(30)
        cluster.net.pull_cable(cluster.node, up=True)
        if not cluster.node.processes():  # Ray gave the machine up
            cluster.start_node()


def disturbed_run(victim: str, cluster: Cluster, command: list[str], chance: random.Random, seconds: float) -> int:
    """Run the command until it ends by itself, with one thing killed in the first run; how often it was begun."""
    for begun in range(1, 10):
        driver = cluster.head.begin(command, cluster.log.with_name("driver.log"), **ENVIRONMENT)
        if begun == 1:
            time.sleep(chance.uniform(0.2, 1.0) * seconds)
            kill(victim, cluster, driver, chance)
        try:
            if driver.wait(600) in (0, 1):  # 1: some images could not be read
                return begun
        except subprocess.TimeoutExpired:
            driver.kill()
            driver.wait()
    raise RuntimeError(f"{victim}: did not end in nine runs; see {cluster.log.with_name('driver.log')}")


def kills(options: argparse.Namespace) -> list[str]:
    chance, tally = random.Random(options.seed), Counter[str]()
    begun: dict[str, list[int]] = {}
    with tempfile.TemporaryDirectory(prefix="vitrail-scale-") as name, network(2) as net:
        folder = Path(name)
        model, manifest = make_work(folder, options.images, options.shard_size)
        command = [*VITRAIL, "predict", str(model), str(manifest), "--batch-size", "16"]
        started = time.monotonic()
        subprocess.run([*command, "--out", str(folder / "single")], check=False, env=None)
        single = time.monotonic() - started
        merge_shards(folder / "single", folder / "single.jsonl")
        expected = (folder / "single.jsonl").read_bytes()
        cluster = Cluster(net, folder)
        cluster.start_head()
        cluster.start_node()
        for number in range(options.runs):
            victim = VICTIMS[number % len(VICTIMS)]
            out = folder / f"run{number}"
            on_ray = [*command, "--out", str(out), "--ray", f"{cluster.head.address}:{PORT}", "--processes", "2"]
            times = disturbed_run(victim, cluster, on_ray, chance, single)
            merge_shards(out, out.with_suffix(".jsonl"))
            same = out.with_suffix(".jsonl").read_bytes() == expected
            tally["same" if same else "different"] += 1
            begun.setdefault(victim, []).append(times)
            print(f"run {number}: {victim}, begun {times} times, {'same' if same else 'DIFFERENT'}", flush=True)
    rows = [f"| {victim} | {len(times)} | {max(times)} |" for victim, times in begun.items()]
    return [
        f"Killed at random: {tally['same']} of {options.runs} runs ended with the bytes of one process "
        f"({options.images:,} pictures, shards of {options.shard_size:,}).",
        "",
        "| what was killed | runs | the command was begun at most |",
        "|---|---|---|",
        *rows,
    ]


# ---- a large catalogue


class SimulatedPool(WorkerPool):
    """Workers that take so long an image, on a clock of their own: only what schedules them takes real time."""

    def __init__(self, manifest: Manifest, workers: int, seconds: float) -> None:
        super().__init__()
        self._manifest, self._workers, self._seconds = manifest, workers, seconds
        self._under_way: list[tuple[float, int]] = []
        self.clock = 0.0

    @property
    def size(self) -> int:
        return self._workers

    def submit(self, number: int) -> None:
        end = self.clock + self._seconds * self._manifest.shards[number].images
        heapq.heappush(self._under_way, (end, number))

    def next(self) -> ShardOutcome | ShardFailure:
        self.clock, number = heapq.heappop(self._under_way)
        return ShardOutcome(number, DONE, self._manifest.shards[number].images)

    def close(self) -> None:
        self._under_way.clear()


def rows_of_catalogue(images: int) -> Iterator[ManifestRow]:
    for number in range(images):
        yield ManifestRow(f"{number // 10_000:06d}/{number:010d}.jpg", label=str(number % 1000))


def catalogue(options: argparse.Namespace) -> list[str]:
    with tempfile.TemporaryDirectory(prefix="vitrail-scale-") as name:
        begun = time.perf_counter()
        manifest = write_manifest(rows_of_catalogue(options.images), "/data", Path(name) / "m")
        listing = time.perf_counter() - begun
        pool = SimulatedPool(manifest, options.workers, 0.001)
        begun = time.perf_counter()
        failures = schedule(pool, manifest.shards, ShardProgress(len(manifest.shards), manifest.images))
        seconds = time.perf_counter() - begun
        assert not failures
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return [
        f"A catalogue of {options.images:,} images in {len(manifest.shards):,} shards, {options.workers} workers of "
        f"1 ms an image: writing the manifest took {listing:.0f} s; scheduling {seconds:.2f} s, "
        f"{100 * seconds / pool.clock:.4f} % of the {pool.clock:,.0f} s that the workers take. Peak memory of the "
        f"process, torch included: {peak:.0f} MB.",
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("what", choices=("kills", "catalogue"))
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument("--images", type=int, help="20,000 for kills, 10 million for catalogue")
    parser.add_argument("--shard-size", type=int, default=500)
    parser.add_argument("--workers", type=int, default=64)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--out", type=Path, default=None, help=f"write the page; {RESULTS.name} in results/ is committed"
    )
    options = parser.parse_args()
    options.images = options.images or {"kills": 20_000, "catalogue": 10_000_000}[options.what]
    lines = {"kills": kills, "catalogue": catalogue}[options.what](options)
    head = (
        f"{datetime.datetime.now(datetime.UTC):%Y-%m-%d %H:%M} UTC, {platform.machine()}, torch {torch.__version__}. "
    )
    text = "\n".join(
        [f"## {options.what}", "", head + f"`python benchmarks/scale.py {' '.join(sys.argv[1:])}`", "", *lines]
    )
    print(text)
    if options.out is not None:
        options.out.write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
