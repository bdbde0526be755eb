"""Manifests on disk and on a store: written in memory that does not grow, read only where they are whole."""

from __future__ import annotations

import json
import math
import os
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet
import pytest

from vitrail.data.manifest import sorted_walk
from vitrail.data.manifest.list_images import list_images
from vitrail.data.manifest.manifest_file import DESCRIPTION, is_manifest, open_manifest, write_manifest
from vitrail.data.manifest.manifest_row import ManifestRow
from vitrail.errors import VitrailError
from vitrail.storage import Entry


def rows(count: int) -> list[ManifestRow]:
    return [ManifestRow(f"cat/{number}.jpg", label=("cat", "dog")[number % 2]) for number in range(count)]


def test_what_is_written_is_read(tmp_path: Path) -> None:
    strange = ManifestRow(os.fsdecode(b"caf\xe9/\xff.jpg"), error="is no image")
    inside = ManifestRow("a.tar", "x.jpg", 512, 9 * 2**30, label="7", split="train")
    cell = ManifestRow("b.parquet", "3", column="image", group=1, row=2)
    written = write_manifest([*rows(5), strange, inside, cell], "/data", tmp_path / "m", shard_size=3)
    assert is_manifest(tmp_path / "m") and not is_manifest(tmp_path)
    manifest = open_manifest(tmp_path / "m")
    assert manifest == written and manifest.digest == json.loads((tmp_path / "m" / DESCRIPTION).read_text())["digest"]
    assert (manifest.images, manifest.errors, [shard.images for shard in manifest.shards]) == (8, 1, [3, 3, 2])
    assert manifest.labels == {"7": 1, "cat": 3, "dog": 2}
    assert [row for shard in manifest.shards for row in manifest.rows(shard)] == [*rows(5), strange, inside, cell]
    columns = pyarrow.parquet.read_table(tmp_path / "m" / manifest.shards[1].file)  # by others too
    assert columns["file"].to_pylist()[:2] == ["cat/3.jpg", "cat/4.jpg"]


def test_on_a_store() -> None:
    write_manifest(rows(4), "s3://bucket/photos", "memory://manifests/one", shard_size=3)
    manifest = open_manifest("memory://manifests/one")
    assert is_manifest("memory://manifests/one") and not is_manifest("memory://manifests")
    assert [row.name for row in manifest.rows(manifest.shards[1])] == ["cat/3.jpg"]
    image = manifest.images_of(manifest.shards[1])[0]
    assert image.path == "s3://bucket/photos/cat/3.jpg"  # type: ignore[attr-defined]


def test_the_description_comes_last_and_stays(tmp_path: Path) -> None:
    def interrupted() -> Iterator[ManifestRow]:
        yield from rows(5)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_manifest(interrupted(), "/data", tmp_path / "m", shard_size=2)
    assert not is_manifest(tmp_path / "m") and len(list((tmp_path / "m").glob("*.parquet"))) == 2
    write_manifest(rows(3), "/data", tmp_path / "m", shard_size=2)
    assert open_manifest(tmp_path / "m").images == 3
    with pytest.raises(VitrailError, match="holds a manifest already"):
        write_manifest(rows(3), "/data", tmp_path / "m")


def test_damage_is_a_sentence(tmp_path: Path) -> None:
    manifest = write_manifest(rows(4), "/data", tmp_path / "m", shard_size=2)
    first, second = (tmp_path / "m" / shard.file for shard in manifest.shards)
    whole = second.read_bytes()
    second.write_bytes(first.read_bytes())
    with pytest.raises(VitrailError, match="not the shard that manifest.json describes"):
        manifest.rows(manifest.shards[1])
    second.write_bytes(whole[:-10])
    with pytest.raises(VitrailError, match="cannot read"):
        manifest.rows(manifest.shards[1])
    second.unlink()
    with pytest.raises(VitrailError, match="does not exist"):
        manifest.rows(manifest.shards[1])
    about = json.loads((tmp_path / "m" / DESCRIPTION).read_text())
    for change, words in (
        ({"vitrail_manifest": 99}, "update Vitrail"),
        ({"shards": [{"file": "../x", "images": 4, "digest": ""}]}, "is damaged"),
        ({"shards": 3}, "is damaged"),
        ({"images": 5}, "is damaged"),
        ({"images": math.inf}, "is damaged"),
        ({"shard_size": 0}, "is damaged"),
        ({"shard_size": 3}, "is damaged"),
        ({"images": 0, "shards": []}, "is damaged"),
    ):
        (tmp_path / "m" / DESCRIPTION).write_text(json.dumps(about | change))
        with pytest.raises(VitrailError, match=words):
            open_manifest(tmp_path / "m")
    (tmp_path / "m" / DESCRIPTION).write_text("[" * 100_000)
    with pytest.raises(VitrailError, match="is damaged"):
        open_manifest(tmp_path / "m")
    (tmp_path / "m" / DESCRIPTION).write_text('{"name": "a web page"}')
    assert not is_manifest(tmp_path / "m")


def test_a_shard_that_repeats_a_long_name_is_refused(tmp_path: Path) -> None:
    manifest = write_manifest([ManifestRow("x" * 100_000 + ".jpg")] * 1000, "/data", tmp_path / "m")
    assert (tmp_path / "m" / manifest.shards[0].file).stat().st_size < 10_000
    with pytest.raises(VitrailError, match="is not the shard"):
        manifest.rows(manifest.shards[0])


def test_a_shard_of_another_encoding_is_refused(tmp_path: Path) -> None:
    manifest = write_manifest([ManifestRow("cafe.jpg")], "/data", tmp_path / "m")
    shard = tmp_path / "m" / manifest.shards[0].file
    table = pyarrow.parquet.read_table(shard)
    latin = pyarrow.array([b"caf\xe9.jpg"]).view(pyarrow.string())
    pyarrow.parquet.write_table(table.set_column(0, "file", latin), shard)
    with pytest.raises(VitrailError, match="cannot read"):
        manifest.rows(manifest.shards[0])


def test_a_pipe_that_is_called_manifest_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / DESCRIPTION)
    assert not is_manifest(tmp_path)


@pytest.mark.parametrize("place", [{"offset": -1}, {"offset": 0, "length": -1}, {"column": "c", "row": -1}])
def test_places_below_zero_are_damage(tmp_path: Path, place: dict[str, Any]) -> None:
    manifest = write_manifest([ManifestRow("a.tar", "x.jpg", **place)], "/data", tmp_path / "m")
    with pytest.raises(VitrailError, match="is damaged"):
        manifest.rows(manifest.shards[0])


@pytest.mark.parametrize("file", ["/etc/passwd", "../../secret.jpg", "http://elsewhere/x.jpg", "a\0b.jpg"])
def test_files_outside_of_the_root_are_refused(tmp_path: Path, file: str) -> None:
    manifest = write_manifest([ManifestRow(file)], "/data", tmp_path / "m")
    with pytest.raises(VitrailError, match="not below its root"):
        manifest.rows(manifest.shards[0])


def test_memory_stays_flat_however_many_files_there_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder of so many files, which exist as names only, through sorting, digests and shards."""

    def peak(count: int) -> int:
        def entries(folder: str) -> Iterator[Entry]:
            for number in range(count):
                name = f"{number * 7919 % count:09d}.jpg"
                yield Entry(name, f"{folder}/{name}", False, True)

        monkeypatch.setattr(sorted_walk, "entries", entries)
        tracemalloc.start()
        paths = (ManifestRow(path) for path in sorted_walk.walk(str(tmp_path), lambda name: True, at_once=1000))
        manifest = write_manifest(paths, str(tmp_path), tmp_path / f"m{count}", shard_size=400)
        highest = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert manifest.images == count
        return highest

    peak(1000)  # what is imported and cached on the first use
    assert peak(12_000) < 1.5 * peak(2000)


def test_listing_is_lazy(tmp_path: Path) -> None:
    for number in range(3):
        (tmp_path / f"{number}.jpg").write_bytes(b"")
    listing = list_images(str(tmp_path))
    assert next(listing).file == "0.jpg"
