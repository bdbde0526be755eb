"""Outputs as JSON lines: a line an image, and a last line that says how many there are and what their bytes hash to."""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import IO, Any

from vitrail.errors import VitrailError
from vitrail.shards.output_format import Counts, OutputFormat, Stamp
from vitrail.storage import Missing, open_file, read_range, size_of
from vitrail.text import shown

KEY = "vitrail_shard"
FORMAT = 1
FOOTER_BYTES = 1024  # a footer is shorter
_CHUNK = 1 << 20


class Lines:
    """The rows of a file as they are written."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file, self._sha = file, hashlib.sha256()
        self._images = self._errors = self._bytes = 0

    def add(self, row: str, is_error: bool) -> None:
        """One row: JSON without a line end."""
        line = row.encode() + b"\n"
        self._file.write(line)
        self._sha.update(line)
        self._images += 1
        self._errors += is_error
        self._bytes += len(line)

    @property
    def counts(self) -> Counts:
        return Counts(self._images, self._errors)

    def footer(self, stamp: Stamp) -> bytes:
        """The last line."""
        about = {
            KEY: FORMAT,
            "job": stamp.job,
            "shard": stamp.shard,
            "images": self._images,
            "errors": self._errors,
            "bytes": self._bytes,
            "sha256": self._sha.hexdigest(),
        }
        return json.dumps(about).encode() + b"\n"


class JsonLines(OutputFormat):
    """JSON lines with a footer."""

    ending = ".jsonl"

    @staticmethod
    @contextlib.contextmanager
    def writing(path: Path, stamp: Stamp) -> Iterator[Lines]:
        """Rows to add; the footer follows them."""
        with path.open("wb") as file:
            lines = Lines(file)
            yield lines
            file.write(lines.footer(stamp))

    def counts(self, path: str, stamp: Stamp) -> Counts | None:
        """From the last line, whose place must be where it says."""
        footer = self._footer(path, stamp)
        return None if footer is None else Counts(footer["images"], footer["errors"])

    def merge(self, files: Iterable[tuple[str, Stamp]], out: Path) -> Counts:
        """The rows without the footers."""
        images = errors = 0
        with out.open("wb") as merged:
            for path, stamp in files:
                footer = self._footer(path, stamp)
                if footer is None or not _copied(path, footer, merged):
                    raise VitrailError(f"{shown(path)} is damaged: remove it and run the same command again")
                images += footer["images"]
                errors += footer["errors"]
        return Counts(images, errors)

    @staticmethod
    def rows(path: str, stamp: Stamp) -> Iterator[dict[str, Any]]:
        """The rows of one file, every byte of them checked."""
        footer = JsonLines._footer(path, stamp)
        if footer is None or not _copied(path, footer, None):
            raise VitrailError(f"{shown(path)} is damaged: remove it and run the same command again")
        with open_file(path) as file:
            for _ in range(footer["images"]):
                yield json.loads(file.readline())

    @staticmethod
    def _footer(path: str, stamp: Stamp) -> dict[str, Any] | None:
        try:
            size = size_of(path)
            if not size:
                return None
            start = max(0, size - FOOTER_BYTES)
            last = read_range(path, start, size - start).rstrip(b"\n").rpartition(b"\n")[2]
            footer = json.loads(last)
            fits = (footer[KEY], footer["job"], footer["shard"]) == (FORMAT, stamp.job, stamp.shard)
            whole = footer["bytes"] + len(last) + 1 == size
            counts = all(type(footer[name]) is int and footer[name] >= 0 for name in ("images", "errors", "bytes"))
            return footer if fits and counts and whole and isinstance(footer["sha256"], str) else None
        except (Missing, KeyError, TypeError, ValueError, RecursionError) as error:
            if isinstance(error, VitrailError) and not isinstance(error, Missing):
                raise  # the store did not answer: that does not mean that the shard is not done
            return None


def _copied(path: str, footer: dict[str, Any], merged: IO[bytes] | None) -> bool:
    """Copy the rows, or only read them; whether they were the very bytes that were written."""
    sha, left = hashlib.sha256(), footer["bytes"]
    with open_file(path) as file:
        while left and (chunk := file.read(min(left, _CHUNK))):
            sha.update(chunk)
            if merged is not None:
                merged.write(chunk)
            left -= len(chunk)
    return not left and sha.hexdigest() == footer["sha256"]
