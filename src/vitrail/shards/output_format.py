"""What a shard's output file is, whatever is in it: whole or not, and one of many to be merged."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple


class Stamp(NamedTuple):
    """What an output is of: it stands in its footer, so that a file that was renamed is not taken for another."""

    job: str  # fingerprint
    shard: str  # digest
    first: int = 0  # number of its first image among all, for outputs that number their rows


@dataclass(frozen=True)
class Counts:
    """What a footer counts."""

    images: int
    errors: int


class OutputFormat(ABC):
    """Files of one kind."""

    ending: str

    @abstractmethod
    def counts(self, path: str, stamp: Stamp) -> Counts | None:
        """What the footer says; None where the file is not there, not whole, or of something else. It reads the end of
        the file only: a run with a million shards begins with this."""

    @abstractmethod
    def merge(self, files: Iterable[tuple[str, Stamp]], out: Path) -> Counts:
        """All rows in one file, in order, after every byte of each was checked."""
