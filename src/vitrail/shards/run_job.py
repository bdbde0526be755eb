"""From a manifest to its outputs, as a command calls it."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from vitrail.data.manifest.manifest_file import Manifest, Shard, open_manifest
from vitrail.errors import VitrailError
from vitrail.shards.job_folder import JobFolder
from vitrail.shards.pools.own_process import OwnProcess
from vitrail.shards.pools.worker_pool import ShardFailure, WorkerPool
from vitrail.shards.run_shard import OpenTask, ShardTask
from vitrail.shards.scheduling import schedule
from vitrail.shards.shard_job import ShardJob
from vitrail.shards.shard_options import ShardOptions
from vitrail.shards.shard_progress import ShardProgress
from vitrail.storage import is_url, local
from vitrail.text import counted, listing
from vitrail.threads import in_threads


@dataclass(frozen=True)
class JobResult:
    """What a run of a job did. Shards that failed are an error instead."""

    folder: JobFolder
    manifest: Manifest
    shards: Sequence[Shard]  # of this part
    images: int
    errors: int
    before: int  # shards that were done before
    rate: float  # images a second

    def in_words(self) -> str:
        """'40 shards, 200,000 images, 310.5 images/s; 3 could not be read'."""
        parts = [counted(len(self.shards), "shard"), counted(self.images, "image")]
        if self.before < len(self.shards):
            parts.append(f"{self.rate:,.1f} images/s")
        if self.before:
            parts.append(f"{self.before:,} done before")
        text = f"{', '.join(parts)} in {self.folder.path}"
        return f"{text}; {self.errors:,} could not be read" if self.errors else text


def run_job(job: ShardJob, manifest: str | Path, out: str | Path, options: ShardOptions) -> JobResult:
    """Do what is not done yet. VitrailError where some shards failed again and again: the same command tries them."""
    _check_out(out, manifest)
    opened_manifest = open_manifest(manifest)
    opened_manifest.check_root()
    worker = job.open()
    folder = JobFolder(str(out), worker.fingerprint, job.output)
    folder.describe(job.command, worker.identity, opened_manifest)
    first, of = options.get("part") or (1, 1)
    shards = opened_manifest.shards[first - 1 :: of]
    progress = ShardProgress(len(shards), sum(shard.images for shard in shards))
    waiting = _not_done(folder, shards, progress)
    with contextlib.ExitStack() as stack:
        stack.callback(progress.close)
        failures: Sequence[ShardFailure] = ()
        if waiting:
            here = OpenTask(worker, opened_manifest, folder)
            task = ShardTask(worker.job, str(manifest), str(out), worker.fingerprint)
            del worker  # a model in this process only where it works itself
            workers = options.get("processes") or (None if options.get("ray") else here.worker.usual_processes)
            pool = make_pool(here, task, workers if workers is None else min(workers, len(waiting)), options.get("ray"))
            del here
            stack.callback(pool.close)
            failures = schedule(pool, waiting, progress)
    if failures:
        numbers = listing([failure.number for failure in failures], 5)
        raise VitrailError(
            f"{counted(len(failures), 'shard')} failed ({numbers}), {progress.done:,} are done: {failures[-1].why}; "
            "run the same command again to try the others once more"
        )
    counts = (progress.images_done, progress.errors, progress.before)
    return JobResult(folder, opened_manifest, shards, *counts, progress.rate)


def make_pool(here: OpenTask, task: ShardTask, workers: int | None, address: str | None) -> WorkerPool:
    """Who does the work: this process, others of this machine, or those of a Ray cluster at this address."""
    if address is not None:
        from vitrail.shards.pools.ray_pool import RayPool

        return RayPool(task, address, workers)
    if workers is None or workers == 1:
        return OwnProcess(here)
    from vitrail.shards.pools.process_pool import ProcessPool

    return ProcessPool(task, workers)


def _not_done(folder: JobFolder, shards: Sequence[Shard], progress: ShardProgress) -> list[Shard]:
    waiting = []
    for shard, counts in zip(shards, in_threads(folder.counts, shards), strict=True):
        if counts is None:
            waiting.append(shard)
        else:
            progress.skipped(counts.images, counts.errors)
    return waiting


def _check_out(out: str | Path, manifest: str | Path) -> None:
    if is_url(out):
        return
    path = Path(local(out))
    if path.exists() and not path.is_dir():
        raise VitrailError(f"{out} is a file: give a folder for the outputs of the shards")
    if path.resolve() == Path(local(manifest)).resolve():
        raise VitrailError(f"{out} is the manifest itself: give another folder for the outputs")
