"""`embed` on shards: vectors in Parquet, a row an image."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from vitrail.errors import VitrailError
from vitrail.images.stored_image import StoredImage
from vitrail.inference.running_options import AnsweringOptions
from vitrail.shards.jobs.predict_job import chosen_options, engine_identity, use_threads, usual_processes
from vitrail.shards.output_format import Counts, OutputFormat, Stamp
from vitrail.shards.shard_job import ShardJob, ShardWorker, Tick
from vitrail.shards.vector_shards import VectorShards
from vitrail.text import shown

if TYPE_CHECKING:
    from vitrail.search.vector_file import Row

GROUP_NUMBERS = 1 << 22  # of a row group: 16 MB, about a thousand vectors of a ViT-L


@dataclass(frozen=True)
class EmbedJob(ShardJob):
    """A model, by its path or hub id, and which vectors of it."""

    command: ClassVar[str] = "embed"
    output: ClassVar[OutputFormat] = VectorShards()

    model: str
    options: AnsweringOptions
    what: str = "pooled"
    normalise: bool = False
    threads: int = 1
    max_pixels: int | None = None
    expected: str | None = None  # fingerprint of the vectors of an index that these join

    def open(self) -> EmbedWorker:
        return EmbedWorker(self)


class EmbedWorker(ShardWorker):
    """The model without its head at work."""

    def __init__(self, job: EmbedJob) -> None:
        from vitrail.search.embeddings import Embedder
        from vitrail.search.vector_file import facts_of

        use_threads(job.threads)
        self._embedder = Embedder(job.model, what=job.what, normalise=job.normalise, **job.options)
        if job.expected not in (None, self._embedder.fingerprint):
            raise VitrailError(
                f"{shown(job.model)} makes other vectors than the index has: give the model that it was made with"
            )
        self.usual_processes = usual_processes(self._embedder.engine)
        self._facts, self._max_pixels = facts_of(self._embedder, job.model), job.max_pixels
        self.job = dataclasses.replace(job, options=chosen_options(job.options, self._embedder.engine))
        self.identity = {
            "model": job.model,  # the name stands in the file
            "vectors": self._embedder.fingerprint,
            "max_pixels": job.max_pixels,
            "fast_decode": bool(job.options.get("fast_decode")),
            **engine_identity(self._embedder.engine),
        }

    def write(self, images: Sequence[StoredImage], file: Path, stamp: Stamp, tick: Tick) -> Counts:
        from vitrail.images.decode_limits import limit_decoding
        from vitrail.search.vector_file import table_of

        size = max(1, GROUP_NUMBERS // self._facts.numbers)
        with limit_decoding(self._max_pixels), VectorShards.writing(file, self._facts, stamp) as written:
            group: list[Row] = []
            for row in self._rows(images, stamp.first):
                group.append(row)
                tick()
                if len(group) == size:
                    written.add(table_of(group, self._facts))
                    group = []
            if group:
                written.add(table_of(group, self._facts))
        return written.counts

    def _rows(self, images: Sequence[StoredImage], first: int) -> Iterator[Row]:
        from vitrail.search.vector_file import Row

        digests: dict[int, str] = {}
        sources = (DigestedImage(image.name, image, place, digests) for place, image in enumerate(images))
        with contextlib.closing(self._embedder.embed(sources)) as embeddings:
            for place, embedding in enumerate(embeddings):
                error = None if embedding.error is None else embedding.error.why
                name = images[place].name.encode("utf-8", "backslashreplace").decode()
                yield Row(first + place, name, digests.pop(place, None), embedding.vector, error)


@dataclass(frozen=True, slots=True)
class DigestedImage(StoredImage):
    """An image whose bytes are hashed when they are fetched: fetching them twice would be half of the work."""

    inner: StoredImage
    place: int
    digests: dict[int, str]

    def fetch(self) -> bytes:
        from vitrail.data.loading.split import digest

        data = self.inner.fetch()
        self.digests[self.place] = digest(data).hex()
        return data
