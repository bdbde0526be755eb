"""A command's job on the shards of a manifest: run it, say what was done, end with the exit code of `predict`."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from vitrail.shards.shard_job import ShardJob
    from vitrail.shards.shard_options import ShardOptions


def run_on_shards(job: ShardJob, manifest: str, out: str, sharding: ShardOptions) -> int:
    """0, or 1 where images could not be read."""
    from vitrail.shards.run_job import run_job

    result = run_job(job, manifest, out, sharding)
    print(result.in_words(), file=sys.stderr)
    return 1 if result.errors else 0
