"""A manifest as a dataset: the items of its folder, or images by their addresses."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.data.manifest.test_list_images import write_tar
from tests.data.manifest.test_survey import manifest_of
from tests.training.running import write_pictures
from vitrail.data.checks.check_dataset import check_dataset
from vitrail.data.layouts.recognise import read_dataset
from vitrail.data.loading.cache import Shape, keep_in_file, keep_in_memory
from vitrail.errors import VitrailError
from vitrail.images.decode import read_image


def test_local_files_are_the_items_of_their_folder(tmp_path: Path) -> None:
    for part in ("train", "val"):
        write_pictures(tmp_path / "data" / part, each=12)
    manifest_of(tmp_path / "data", tmp_path / "m")
    folder, mine = read_dataset(tmp_path / "data"), read_dataset(tmp_path / "m", manifests=True)
    assert mine.labels == folder.labels and mine.task == folder.task and mine.findings == ()
    assert sorted(mine.items, key=str) == sorted(folder.items, key=str)
    with pytest.raises(VitrailError, match="is a manifest, which this command does not take"):
        read_dataset(tmp_path / "m")


def test_members_of_a_tar_are_read_by_their_address(tmp_path: Path) -> None:
    data = write_pictures(tmp_path / "data", each=3)
    files = {path.relative_to(data).as_posix(): path.read_bytes() for path in sorted(data.rglob("*.png"))}
    files["cat/2.png"] = files["cat/2.png"][:80]
    (tmp_path / "tars").mkdir()
    write_tar(tmp_path / "tars" / "a.tar", files)
    manifest_of(tmp_path / "tars", tmp_path / "m")
    dataset = read_dataset(tmp_path / "m", manifests=True)
    item = dataset.items[0]
    assert item.path == Path("a.tar::cat/0.png") and item.target == 0
    np.testing.assert_array_equal(read_image(item.source), read_image(data / "cat" / "0.png"))
    report = check_dataset(dataset, fast=True)
    assert report.broken == {Path("a.tar::cat/2.png")}
    readable = report.dataset.without(report.broken)
    assert len(readable.items) == 8 and all(item.stored is not None for item in readable.items)
    assert {item.path for item in readable.items if item.split == "val"} <= {item.path for item in dataset.items}


def test_the_file_of_decoded_images_knows_when_a_tar_was_written_anew(tmp_path: Path) -> None:
    data = write_pictures(tmp_path / "data", each=2)
    files = {path.relative_to(data).as_posix(): path.read_bytes() for path in sorted(data.rglob("*.png"))}
    (tmp_path / "tars").mkdir()
    shape, seen = Shape(16, 16, 3), []
    for turn in range(2):
        if turn:
            files["cat/0.png"] = files["dog/0.png"]
        write_tar(tmp_path / "tars" / "a.tar", files)
        manifest_of(tmp_path / "tars", tmp_path / f"m{turn}")
        sources = [item.source for item in read_dataset(tmp_path / f"m{turn}", manifests=True).items]
        cache = keep_in_file(sources, shape, tmp_path / "cache", workers=1)
        np.testing.assert_array_equal(cache.pixels, keep_in_memory(sources, shape, 1).pixels)
        seen.append(cache.pixels.copy())
    assert not np.array_equal(*seen)
