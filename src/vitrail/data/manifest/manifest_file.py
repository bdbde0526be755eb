"""A manifest on disk or on a store: a folder of Parquet shards, and `manifest.json`, which is written last.

    photos.manifest/manifest.json       how many images, the root that paths are from, every shard with its digest
                    shard-000000.parquet   5,000 images: columns of `ManifestRow`

Every shard but the last has `shard_size` images, so image number n lies in shard n // shard_size: whoever wants images
in another order (a sampler) reads the shard that it lies in, and no list of all of them is ever in memory.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vitrail import __version__
from vitrail.data.manifest.manifest_row import COLUMNS, NUMBERS, RAW, ManifestRow, digest, from_columns, to_columns
from vitrail.data.parquet_file import open_parquet, require_pyarrow, swells, unpacked_bytes
from vitrail.data.parquet_footer import UnsoundFooter
from vitrail.errors import VitrailError
from vitrail.images.stored_image import StoredImage
from vitrail.progress import Progress
from vitrail.storage import Missing, is_folder, is_url, join, local, read_bytes, size_of, write_bytes
from vitrail.text import shown

FORMAT = 1
DESCRIPTION = "manifest.json"
SHARD_SIZE = 5000
MOST_IN_SHARD = 1_000_000
MOST_LABELS = 10_000  # that the description counts by name
_BYTES_A_ROW = 20_000  # of a shard, unpacked: a path, a member's name, a label


@dataclass(frozen=True)
class Shard:
    """A part of a manifest: the unit of work."""

    number: int
    file: str
    images: int
    digest: str  # of what its rows say


@dataclass(frozen=True)
class Manifest:
    """What `manifest.json` says."""

    path: str
    root: str
    images: int
    errors: int  # rows of what could not be listed
    shard_size: int
    shards: tuple[Shard, ...]
    labels: dict[str, int] | None  # images of each; None: too many to list here

    @property
    def digest(self) -> str:
        """Of all of its shards."""
        return hashlib.sha256("\n".join(shard.digest for shard in self.shards).encode()).hexdigest()

    def rows(self, shard: Shard) -> list[ManifestRow]:
        """The rows of a shard, once it is certain that they are those that were written."""
        return self._read(shard)[0]

    def table(self, shard: Shard) -> Any:
        """The same as pyarrow's table, which takes less memory; `row_of` makes a row of it."""
        return self._read(shard)[1]

    def row_of(self, shard: Shard, table: Any, place: int) -> ManifestRow:
        """One row of a shard's table."""
        return from_columns(table.slice(place, 1).to_pydict(), join(self.path, shard.file))[0]

    def _read(self, shard: Shard) -> tuple[list[ManifestRow], Any]:
        where = join(self.path, shard.file)
        table = _read_shard(where, shard.images)
        rows = from_columns(table.to_pydict(), where)
        if len(rows) != shard.images or digest(rows) != shard.digest:
            raise VitrailError(f"{shown(where)} is not the shard that {DESCRIPTION} describes: make the manifest again")
        return rows, table

    def images_of(self, shard: Shard) -> list[StoredImage]:
        """The images of a shard, in order."""
        return [row.image(self.root) for row in self.rows(shard)]

    def check_root(self) -> None:
        """Refuse to begin where its files are not to be seen at all, as on a machine without the mounted disk: each
        image would be an error row, and the shard done."""
        if not is_url(self.root) and not is_folder(self.root):
            raise VitrailError(f"{shown(self.root)}, where the images of {shown(self.path)} lie, is not there")


def is_manifest(path: str | Path) -> bool:
    """Whether a folder, or a folder on a store, holds a manifest."""
    if not is_url(path) and not os.path.isdir(local(path)):  # unlike Path.is_dir, this has an answer for every text
        return False
    return size_of(join(str(path), DESCRIPTION)) is not None and _is_ours(join(str(path), DESCRIPTION))


def open_manifest(path: str | Path) -> Manifest:
    """The manifest of a folder; VitrailError where it is none, or damaged."""
    where = join(str(path), DESCRIPTION)
    try:
        about = json.loads(read_bytes(where))
        number = about["vitrail_manifest"]
        if isinstance(number, int) and number > FORMAT:
            raise VitrailError(f"{shown(where)} has format {number}, this version reads up to {FORMAT}: update Vitrail")
        shards = tuple(
            Shard(place, str(one["file"]), int(one["images"]), str(one["digest"]))
            for place, one in enumerate(about["shards"])
        )
        labels = about.get("labels")
        manifest = Manifest(
            path=str(path),
            root=str(about["root"]),
            images=int(about["images"]),
            errors=int(about.get("errors", 0)),
            shard_size=int(about["shard_size"]),
            shards=shards,
            labels={str(name): int(count) for name, count in labels.items()} if isinstance(labels, dict) else None,
        )
    except Missing:
        raise VitrailError(
            f"{shown(path)} is no manifest: vitrail manifest DATA --out {shown(path)} makes one"
        ) from None
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError, RecursionError) as error:
        if isinstance(error, VitrailError):
            raise
        raise VitrailError(f"{shown(where)} is damaged: make the manifest again") from None
    if not _is_possible(manifest):
        raise VitrailError(f"{shown(where)} is damaged: make the manifest again")
    return manifest


def write_manifest(
    rows: Iterable[ManifestRow],
    root: str,
    out: str | Path,
    shard_size: int = SHARD_SIZE,
    progress: Progress | None = None,
) -> Manifest:
    """Shards as they fill, the description last. Memory: one shard."""
    if not 0 < shard_size <= MOST_IN_SHARD:
        raise VitrailError(f"the shard size is {shard_size:,}: give 1 to {MOST_IN_SHARD:,}")
    if size_of(join(str(out), DESCRIPTION)) is not None:
        raise VitrailError(f"{shown(out)} holds a manifest already: remove it, or choose another name for --out")
    shards: list[Shard] = []
    labels: Counter[str] = Counter()
    images = errors = 0
    for some in _in_lists(rows, shard_size):
        shard = Shard(len(shards), f"shard-{len(shards):06d}.parquet", len(some), digest(some))
        write_bytes(join(str(out), shard.file), _shard_bytes(some))
        shards.append(shard)
        images += len(some)
        errors += sum(row.error is not None for row in some)
        if len(labels) <= MOST_LABELS:
            labels.update(row.label for row in some if row.label is not None)
        if progress is not None:
            progress(images, images)
    if not images:
        raise VitrailError(f"no images were found in {shown(root)}")
    manifest = Manifest(
        path=str(out),
        root=root,
        images=images,
        errors=errors,
        shard_size=shard_size,
        shards=tuple(shards),
        labels=dict(sorted(labels.items())) if len(labels) <= MOST_LABELS else None,
    )
    write_bytes(join(str(out), DESCRIPTION), _description(manifest))
    return manifest


# ---- parts


def _is_possible(manifest: Manifest) -> bool:
    """Whether the shards are files of the folder and hold what `write_manifest` puts into them, so that an image is
    found by its number."""
    shards, size = manifest.shards, manifest.shard_size
    names = {shard.file for shard in shards}
    if len(names) != len(shards) or any("/" in name or name.startswith(".") for name in names):
        return False
    if not shards or not 0 < size <= MOST_IN_SHARD or manifest.errors < 0:
        return False
    full = all(shard.images == size for shard in shards[:-1]) and 0 < shards[-1].images <= size
    return full and manifest.images == sum(shard.images for shard in shards)


def _description(manifest: Manifest) -> bytes:
    about = {
        "vitrail_manifest": FORMAT,
        "written_by": f"vitrail {__version__}",
        "root": manifest.root,
        "images": manifest.images,
        "errors": manifest.errors,
        "shard_size": manifest.shard_size,
        "digest": manifest.digest,
        "labels": manifest.labels,
        "shards": [{"file": s.file, "images": s.images, "digest": s.digest} for s in manifest.shards],
    }
    return (json.dumps(about, indent=1) + "\n").encode()


def _is_ours(description: str) -> bool:
    """Whether a `manifest.json` is a manifest of images: web pages and others have files of this name too."""
    try:
        about: Any = json.loads(read_bytes(description))
    except (ValueError, RecursionError):
        return False
    return isinstance(about, dict) and "vitrail_manifest" in about


def _in_lists(rows: Iterable[ManifestRow], size: int) -> Iterator[list[ManifestRow]]:
    some: list[ManifestRow] = []
    for row in rows:
        some.append(row)
        if len(some) == size:
            yield some
            some = []
    if some:
        yield some


def _schema() -> Any:
    arrow = require_pyarrow()
    types = {name: arrow.int64() if name in NUMBERS else arrow.string() for name in COLUMNS} | {RAW: arrow.binary()}
    return arrow.schema(list(types.items()))


def _shard_bytes(rows: list[ManifestRow]) -> bytes:
    arrow = require_pyarrow()
    sink = io.BytesIO()
    arrow.parquet.write_table(arrow.table(to_columns(rows), schema=_schema()), sink, compression="zstd")
    return sink.getvalue()


def _read_shard(where: str, images: int) -> Any:
    arrow = require_pyarrow()
    try:
        with open_parquet(io.BytesIO(read_bytes(where))) as file:
            groups = [file.metadata.row_group(group) for group in range(file.metadata.num_row_groups)]
            most = images * _BYTES_A_ROW + 1_000_000
            if file.metadata.num_rows != images or sum(group.total_byte_size for group in groups) > most:
                raise VitrailError(f"{shown(where)} is not the shard that {DESCRIPTION} describes")
            swelling = any(swells(file.metadata, place) for place in range(file.metadata.num_columns))
            if swelling or not file.metadata.schema.to_arrow_schema().equals(_schema(), check_metadata=False):
                raise VitrailError(f"{shown(where)} does not have a manifest's columns: make the manifest again")
            table = file.read()
            if sum(map(unpacked_bytes, table.columns)) > most:
                raise VitrailError(f"{shown(where)} is not the shard that {DESCRIPTION} describes")
            table = table.cast(_schema())
            table.validate(full=True)  # that its text is UTF-8
            return table
    except (arrow.ArrowException, OSError, UnsoundFooter, UnicodeDecodeError) as error:
        raise VitrailError(f"cannot read {shown(where)}: {' '.join(str(error).split())[:200]}") from None
