"""A manifest of so many rows is written and scheduled for real, on workers that only say that they are done."""

from __future__ import annotations

import argparse
import heapq
import resource
import time
from collections.abc import Iterator

from benchmarks.scaling.report import Report, working_folder
from vitrail.data.manifest.manifest_file import Manifest, write_manifest
from vitrail.data.manifest.manifest_row import ManifestRow
from vitrail.shards.pools.worker_pool import ShardFailure, WorkerPool
from vitrail.shards.run_shard import DONE, ShardOutcome
from vitrail.shards.scheduling import schedule
from vitrail.shards.shard_progress import ShardProgress


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


def catalogue(options: argparse.Namespace) -> Iterator[Report]:
    with working_folder() as folder:
        begun = time.perf_counter()
        manifest = write_manifest(rows_of_catalogue(options.images), "/data", folder / "m")
        listing = time.perf_counter() - begun
        pool = SimulatedPool(manifest, options.workers, 0.001)
        begun = time.perf_counter()
        failures = schedule(pool, manifest.shards, ShardProgress(len(manifest.shards), manifest.images))
        seconds = time.perf_counter() - begun
        assert not failures
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    text = (
        f"A catalogue of {options.images:,} images in {len(manifest.shards):,} shards, {options.workers} workers of "
        f"1 ms an image: writing the manifest took {listing:.0f} s; scheduling {seconds:.2f} s, "
        f"{100 * seconds / pool.clock:.4f} % of the {pool.clock:,.0f} s that the workers take. Peak memory of the "
        f"process, torch included: {peak:.0f} MB."
    )
    yield Report([text])
