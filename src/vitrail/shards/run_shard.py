"""One shard, in the process that works on it."""

from __future__ import annotations

import time
from collections.abc import Collection
from dataclasses import dataclass

from vitrail.data.manifest.manifest_file import Manifest, Shard, open_manifest
from vitrail.errors import VitrailError
from vitrail.shards.claims import claimed, owner_of
from vitrail.shards.job_folder import JobFolder
from vitrail.shards.shard_job import ShardJob, ShardWorker
from vitrail.storage import writing
from vitrail.text import shown

DONE, DONE_BEFORE, CLAIMED = "done", "done before", "claimed"


@dataclass(frozen=True)
class ShardTask:
    """What a worker process is started with."""

    job: ShardJob
    manifest: str  # its path
    out: str
    fingerprint: str  # of the job as the process that schedules sees it

    def open(self) -> OpenTask:
        """Load the model and look whether it is the one that the others have."""
        worker, manifest = self.job.open(), open_manifest(self.manifest)
        return OpenTask(worker, manifest, JobFolder(self.out, worker.fingerprint, self.job.output))


@dataclass(frozen=True)
class ShardOutcome:
    """What came of a shard."""

    number: int
    state: str  # DONE, DONE_BEFORE or CLAIMED
    images: int = 0
    errors: int = 0
    seconds: float = 0.0
    owner: str = ""  # of a claimed one


@dataclass(frozen=True)
class OpenTask:
    """A process that is ready to work on shards."""

    worker: ShardWorker
    manifest: Manifest
    folder: JobFolder

    def run(self, number: int, gone: Collection[str] = ()) -> ShardOutcome:
        """Work on a shard, unless that is done or another process is at it, other than those that are gone. An
        exception: it failed, and may be tried again."""
        shard = self.manifest.shards[number]
        path = self.folder.file(shard.number, shard.digest)
        if (counts := self.folder.counts(shard)) is not None:
            return ShardOutcome(number, DONE_BEFORE, counts.images, counts.errors)
        with claimed(path, gone) as touch:
            if touch is None:
                return ShardOutcome(number, CLAIMED, owner=owner_of(path))
            begun = time.perf_counter()
            self.manifest.check_root()
            with writing(path) as temporary:
                images = self.manifest.images_of(shard)
                stamp = self.folder.stamp(shard.digest)._replace(first=number * self.manifest.shard_size)
                counts = self.worker.write(images, temporary, stamp, touch)
                self._check_complete(shard, counts.images)
            return ShardOutcome(number, DONE, counts.images, counts.errors, time.perf_counter() - begun)

    def _check_complete(self, shard: Shard, written: int) -> None:
        """Before the output gets its name: it has a row for each image, and the disk is still there."""
        self.manifest.check_root()
        if written != shard.images:
            raise VitrailError(f"{shown(shard.file)}: {written:,} rows for {shard.images:,} images; report this")
