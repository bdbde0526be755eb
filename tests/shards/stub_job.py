"""A job without a model, for the tests of what schedules shards: it may wait, fail or be killed at one of them."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from vitrail.data.manifest.manifest_file import Manifest, write_manifest
from vitrail.data.manifest.manifest_row import ManifestRow
from vitrail.images.stored_image import StoredImage
from vitrail.shards.shard_job import RowsWorker, ShardJob


@dataclass(frozen=True)
class StubJob(ShardJob):
    """trouble: where it says once, by a file that is gone afterwards, what happens at the image of that name."""

    command: ClassVar[str] = "predict"

    trouble: str = ""
    seconds: float = 0.0  # that an image takes
    version: str = "1"

    def open(self) -> StubWorker:
        return StubWorker(self)


class StubWorker(RowsWorker):
    def __init__(self, job: StubJob) -> None:
        self.job, self.stub = job, job
        self.identity = {"version": os.environ.get("STUB_VERSION", job.version)}

    def rows(self, images: Sequence[StoredImage]) -> Iterator[Mapping[str, Any]]:
        for image in images:
            time.sleep(self.stub.seconds)
            if self.stub.trouble:
                meet_trouble(Path(self.stub.trouble) / image.name)
            yield {"image": image.name} | ({"error": "is broken"} if "broken" in image.name else {"answer": 1})


def meet_trouble(path: Path) -> None:
    if not path.exists():
        return
    what = path.read_text()
    if what != "always fail":
        path.unlink()
    if what == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    raise RuntimeError(what)


def stub_manifest(folder: Path, images: int = 12, shard_size: int = 3) -> Manifest:
    (folder / "data").mkdir(exist_ok=True)
    names = [f"{number}{' broken' if number % 5 == 4 else ''}.jpg" for number in range(images)]
    return write_manifest([ManifestRow(name) for name in names], str(folder / "data"), folder / "m", shard_size)
