"""The commands that work on shards, by name."""

from __future__ import annotations

import importlib

from vitrail.errors import VitrailError
from vitrail.shards.output_format import OutputFormat
from vitrail.shards.shard_job import ShardJob

JOBS = {"predict": "PredictJob", "check": "CheckJob", "embed": "EmbedJob"}  # a file NAME_job.py each


def output_of(command: str) -> OutputFormat:
    """The format of a command's outputs."""
    if command not in JOBS:
        raise VitrailError(f"these are outputs of {command!r}, which this version of Vitrail does not know: update it")
    job: type[ShardJob] = getattr(importlib.import_module(f"vitrail.shards.jobs.{command}_job"), JOBS[command])
    return job.output
