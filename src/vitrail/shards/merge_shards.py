"""One file of all outputs of a job, in the order of the manifest: the bytes that one process would have written."""

from __future__ import annotations

from pathlib import Path

from vitrail.errors import VitrailError
from vitrail.shards.job_folder import JobFolder, choose_job
from vitrail.shards.jobs.job_registry import output_of
from vitrail.shards.output_format import Counts
from vitrail.storage import is_url, local, writing
from vitrail.text import listing, shown


def merge_shards(folder: str | Path, out: str | Path, job: str | None = None) -> Counts:
    """Merge the outputs in a folder. job: the beginning of a fingerprint, where there are several."""
    described = choose_job(str(folder), job)
    if not is_url(out) and Path(local(out)).is_dir():
        raise VitrailError(f"{shown(out)} is a folder: give the name of a file to write")
    outputs = JobFolder(str(folder), described.fingerprint, output_of(described.command))
    files = [(outputs.file(number, digest), outputs.stamp(digest)) for number, digest in enumerate(described.shards)]
    missing = [number for number, (file, stamp) in enumerate(files) if outputs.output.counts(file, stamp) is None]
    if missing:
        raise VitrailError(
            f"{len(missing):,} of {len(files):,} shards are not done ({listing(missing, 5)}): run the command that "
            f"made {shown(folder)} again, then merge"
        )
    with writing(out) as temporary:
        return outputs.output.merge(files, temporary)
