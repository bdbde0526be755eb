"""The contract between a command and the shards: what it does with the images of one, and all that this depends on.

A command plugs in with two classes in `jobs/`. Its `ShardJob` is small and travels to whoever works: a path to the
model and settings. `open` gives a `ShardWorker`, once a process, which holds the model and writes a shard's output.
"""

from __future__ import annotations

import hashlib
import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from vitrail.images.stored_image import StoredImage
from vitrail.shards.json_lines import JsonLines
from vitrail.shards.output_format import Counts, OutputFormat, Stamp
from vitrail.text import json_text

Tick = Callable[[], None]  # called at every image: it keeps the claim on the shard alive


class ShardWorker(ABC):
    """A job at work in one process."""

    usual_processes: int = 1  # workers on this machine, where nobody says how many
    job: ShardJob  # the same with everything named that was chosen when it was opened: an engine, a precision
    identity: Mapping[str, Any]  # all that the output depends on besides the images, fit for JSON

    @property
    def fingerprint(self) -> str:
        """Of the identity. Outputs with two of them never mix."""
        return hashlib.sha256(json.dumps(self.identity, sort_keys=True).encode()).hexdigest()

    @abstractmethod
    def write(self, images: Sequence[StoredImage], file: Path, stamp: Stamp, tick: Tick) -> Counts:
        """The output of a shard with these images, complete with its footer: one row an image, in order, an error row
        where one cannot be read."""


@dataclass(frozen=True)
class ShardJob(ABC):
    """What is done with each shard. It is pickled, so it holds no model, and its module does not import torch: in a new
    process the number of threads is set before that."""

    command: ClassVar[str]
    output: ClassVar[OutputFormat] = JsonLines()

    @abstractmethod
    def open(self) -> ShardWorker:
        """Load the model, in the process that will work."""


class RowsWorker(ShardWorker):
    """A worker whose output is JSON lines."""

    @abstractmethod
    def rows(self, images: Sequence[StoredImage]) -> Iterator[Mapping[str, Any]]:
        """A row an image, in order; `error` in it where it could not be read."""

    def write(self, images: Sequence[StoredImage], file: Path, stamp: Stamp, tick: Tick) -> Counts:
        with JsonLines.writing(file, stamp) as lines:
            for row in self.rows(images):
                lines.add(json_text(row), "error" in row)
                tick()
        return lines.counts
