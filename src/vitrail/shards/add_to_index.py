"""The vectors of a manifest's shards become rows of an index, whoever made them.

Rows are known by their content, so a run that was stopped adds what is missing and doubles nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from vitrail.data.manifest.manifest_file import Manifest
from vitrail.search.index.add_images import Addition, AddSummary, path_in_index
from vitrail.search.index.index_writer import IndexWriter
from vitrail.search.vector_file import VectorFacts, read_facts
from vitrail.shards.job_folder import JobFolder
from vitrail.shards.vector_shards import VectorShards
from vitrail.storage import join


def shards_of(index: Path) -> Path:
    """Where the outputs of the shards lie: a folder beside the index."""
    return index.with_name(f"{index.name}.shards")


def facts_of_shards(folder: JobFolder, manifest: Manifest) -> VectorFacts:
    """What made the vectors of a job that is done."""
    return read_facts(Path(folder.file(0, manifest.shards[0].digest)))


def add_shards(
    writer: IndexWriter, folder: JobFolder, manifest: Manifest, seen: Callable[[], None] = lambda: None
) -> AddSummary:
    """Add the images of all shards; copies are left out, what changed is replaced. seen: is called after each image.

    An interruption leaves what was committed, and commits what has come since.
    """
    addition, shards = Addition(writer), VectorShards()
    try:
        for shard in manifest.shards:
            for row in shards.rows(folder.file(shard.number, shard.digest), folder.stamp(shard.digest)):
                addition.add_row(replace(row, path=path_in_index(join(manifest.root, row.path))))
                seen()
    finally:
        addition.commit()
    return addition.summary
