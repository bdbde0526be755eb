"""The folder of a job's outputs, here or on a store: one file a shard, and `job-FINGERPRINT.json`, which says of what.

    out/job-1f0c...json              the command, its identity, the digests of all shards in order
        000000-9b2e...-1f0c...jsonl  shard 0 of this manifest, by this job

A file's name holds the shard's digest and the job's fingerprint. So another model, another setting or another manifest
never finds its work done, and two jobs can share a folder.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from vitrail.data.manifest.manifest_file import Manifest, Shard
from vitrail.errors import VitrailError
from vitrail.shards.output_format import Counts, OutputFormat, Stamp
from vitrail.storage import entries, is_folder, join, read_bytes, size_of, write_bytes
from vitrail.text import counted, listing, shown

KEY = "vitrail_job"
FORMAT = 1


@dataclass(frozen=True)
class JobFolder:
    """Where the outputs of one job are."""

    path: str
    fingerprint: str
    output: OutputFormat

    def file(self, number: int, digest: str) -> str:
        """The output of a shard."""
        return join(self.path, f"{number:06d}-{digest[:12]}-{self.fingerprint[:16]}{self.output.ending}")

    def counts(self, shard: Shard) -> Counts | None:
        """What the output of a shard counts; None: it is not done."""
        return self.output.counts(self.file(shard.number, shard.digest), self.stamp(shard.digest))

    def stamp(self, digest: str) -> Stamp:
        """What the footer of a shard's output has."""
        return Stamp(self.fingerprint, digest)

    def describe(self, command: str, identity: Any, manifest: Manifest) -> None:
        """Write what this job is; every process of it writes the same."""
        where = join(self.path, f"job-{self.fingerprint[:16]}.json")
        about = {
            KEY: FORMAT,
            "command": command,
            "fingerprint": self.fingerprint,
            "identity": dict(identity),
            "images": manifest.images,
            "shards": [shard.digest for shard in manifest.shards],
        }
        data = (json.dumps(about, indent=1, sort_keys=True) + "\n").encode()
        if size_of(where) != len(data) or read_bytes(where) != data:
            write_bytes(where, data)


@dataclass(frozen=True)
class DescribedJob:
    """What `job-FINGERPRINT.json` says."""

    command: str
    fingerprint: str
    shards: Sequence[str]  # digests, in order


def described_jobs(path: str) -> list[DescribedJob]:
    """The jobs of a folder; VitrailError where there is none."""
    if not is_folder(path):
        raise VitrailError(f"there is no folder {shown(path)}")
    names = sorted(e.name for e in entries(path) if e.name.startswith("job-") and e.name.endswith(".json"))
    jobs = [_read(join(path, name)) for name in names]
    if not jobs:
        raise VitrailError(f"{shown(path)} holds no outputs of shards: vitrail predict MODEL MANIFEST --out makes them")
    return jobs


def choose_job(path: str, beginning: str | None) -> DescribedJob:
    """The one job of a folder, or the one whose fingerprint begins so."""
    jobs = [job for job in described_jobs(path) if job.fingerprint.startswith(beginning or "")]
    if len(jobs) == 1:
        return jobs[0]
    names = listing([f"{job.fingerprint[:16]} ({job.command})" for job in jobs or described_jobs(path)], 5)
    if not jobs:
        raise VitrailError(f"{shown(path)} holds no job {beginning!r}, but {names}")
    raise VitrailError(f"{shown(path)} holds {counted(len(jobs), 'job')}, {names}: say which with --job")


def _read(where: str) -> DescribedJob:
    try:
        about = json.loads(read_bytes(where))
        if about[KEY] > FORMAT:
            raise VitrailError(f"{shown(where)} is of a later version: update Vitrail")
        return DescribedJob(str(about["command"]), str(about["fingerprint"]), [str(one) for one in about["shards"]])
    except (KeyError, TypeError, ValueError, RecursionError) as error:
        if isinstance(error, VitrailError):
            raise
        raise VitrailError(f"{shown(where)} is damaged: run the command that made it again") from None
