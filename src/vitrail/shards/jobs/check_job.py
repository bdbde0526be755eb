"""`check` on shards: what each image file is, or why it cannot be read."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from vitrail.images.stored_image import StoredImage
from vitrail.shards.shard_job import RowsWorker, ShardJob
from vitrail.threads import usable_cores

if TYPE_CHECKING:
    from vitrail.data.checks.examine import Examined

AHEAD = 64  # images that are read ahead


@dataclass(frozen=True)
class CheckJob(ShardJob):
    """fast: headers and bytes only, nothing is decoded."""

    command: ClassVar[str] = "check"

    fast: bool = False
    max_pixels: int | None = None
    workers: int | None = None

    def open(self) -> CheckWorker:
        return CheckWorker(self)


class CheckWorker(RowsWorker):
    """Threads that look at images."""

    def __init__(self, job: CheckJob) -> None:
        from PIL import __version__ as pillow

        from vitrail import __version__

        self.job, self._check = job, job
        versions = {"vitrail": __version__, "pillow": pillow}
        self.identity = {"fast": job.fast, "max_pixels": job.max_pixels, "versions": versions}

    def rows(self, images: Sequence[StoredImage]) -> Iterator[Mapping[str, Any]]:
        from vitrail.data.checks.examine import examine
        from vitrail.images.decode_limits import limit_decoding
        from vitrail.inference.prefetch import Pause, prefetch

        job = self._check
        workers = job.workers or min(8, usable_cores())
        looks = prefetch(lambda image: examine(image, job.fast), images, workers, AHEAD)
        with limit_decoding(job.max_pixels), contextlib.closing(looks):
            for look in looks:
                assert not isinstance(look, Pause)
                yield row_of_look(*look)


def row_of_look(image: StoredImage, look: Examined) -> dict[str, Any]:
    """What one look showed, fit for JSON."""
    from vitrail.data.checks.perceptual_hash import is_flat

    if look.problem is not None:
        return {"image": image.name, "error": str(look.problem), "kind": look.problem.kind}
    facts = look.facts
    assert facts is not None
    row: dict[str, Any] = {"image": image.name, "digest": look.digest.hex(), "format": facts.format, "mode": facts.mode}
    row |= {"width": facts.width, "height": facts.height, "orientation": facts.orientation, "frames": facts.frames}
    row["transparent"] = facts.transparent
    if look.small is not None:
        row |= {"hash": f"{look.hash:016x}", "blank": is_flat(look.small)}
    return row
