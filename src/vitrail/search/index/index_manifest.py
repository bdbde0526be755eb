"""`index.json`, the pointer: which files make up the newest generation of an index.

Files are never changed. A writer adds new ones and then replaces the pointer, in one rename: whoever is killed on the
way leaves the generation before, whole. Files of the generation before stay until the next write, for readers that have
just read the pointer. Ids are given out once and never again, so whatever is known of an id stays true.
"""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass
from pathlib import Path

from vitrail.errors import VitrailError
from vitrail.files import read_text, write_text
from vitrail.search.vector_file import VectorFacts, facts_of_json
from vitrail.text import shown

POINTER = "index.json"
FORMAT = 1
MOST_IDS = 1 << 62  # so that those of the next rows are 64-bit numbers too


@dataclass(frozen=True)
class SegmentEntry:
    """One Parquet file of rows in ascending order of their ids, and its vectors as an array, which can be made again.

    Both arrays of an index are in NumPy's format, but not called .npy: a folder of pictures may hold an index, and .npy
    is one of the endings of pictures.
    """

    name: str
    rows: int

    def parquet(self, folder: Path) -> Path:
        """The rows: the truth."""
        return folder / f"{self.name}.parquet"

    def array(self, folder: Path) -> Path:
        """The vectors (rows, D) for memory-mapping: a cache."""
        return folder / f"{self.name}.array"


@dataclass(frozen=True)
class Manifest:
    """One generation. facts.model: where the model was, an absolute path or a hub id."""

    facts: VectorFacts
    generation: int = 0
    next_id: int = 0
    segments: tuple[SegmentEntry, ...] = ()
    removed: int = 0  # rows of the segments that count no more; their ids are in `removed_file`

    def removed_file(self, folder: Path) -> Path | None:
        """The ids (removed,) as an array; None where there are none."""
        return folder / f"removed-{self.generation:06d}.array" if self.removed else None

    def files(self, folder: Path) -> set[Path]:
        """All files of this generation, but for the pointer."""
        paths = {path for one in self.segments for path in (one.parquet(folder), one.array(folder))}
        removed = self.removed_file(folder)
        return paths if removed is None else paths | {removed}

    @property
    def rows(self) -> int:
        """Of all segments, removed ones included."""
        return sum(one.rows for one in self.segments)

    @property
    def size(self) -> int:
        """Pictures in the index."""
        return self.rows - self.removed


def is_index(folder: str | Path) -> bool:
    """Whether a folder has a pointer."""
    return Path(folder, POINTER).is_file()


def read_manifest(folder: Path) -> Manifest:
    """The newest generation; VitrailError where the folder is no index."""
    path = folder / POINTER
    if not path.is_file():
        raise VitrailError(
            f"{shown(folder)} is no index: make one by `vitrail index MODEL IMAGES --out {shown(folder)}`"
        )
    try:
        values = json.loads(read_text(path))
        if values.pop("format") > FORMAT:
            raise VitrailError(f"{shown(folder)} was written by a newer version of Vitrail: update Vitrail")
        facts = facts_of_json(values.pop("facts"))
        segments = tuple(SegmentEntry(str(one["name"]), int(one["rows"])) for one in values.pop("segments"))
        manifest = Manifest(facts=facts, segments=segments, **values)
        _check(manifest)
    except (KeyError, ValueError, TypeError, AttributeError, OverflowError, RecursionError):
        raise VitrailError(f"{shown(path)} is damaged: make the index again") from None
    if any(Path(one.name).name != one.name for one in manifest.segments):
        raise VitrailError(f"{shown(path)} names files outside of its folder: make the index again")
    return manifest


def _check(manifest: Manifest) -> None:
    """ValueError for numbers that are none."""
    numbers = [manifest.generation, manifest.next_id, manifest.removed, manifest.size]
    numbers += [one.rows for one in manifest.segments]
    if any(type(number) is not int or not 0 <= number < MOST_IDS for number in numbers) or manifest.facts.grid:
        raise ValueError(numbers)


def write_manifest(folder: Path, manifest: Manifest) -> None:
    """Put the pointer on a generation whose files are all there."""
    values = {"format": FORMAT, **dataclasses.asdict(manifest)}
    write_text(folder / POINTER, json.dumps(values, indent=1) + "\n")
