"""What is known of each image of a large manifest: the same parts as the folder would have, in a few bytes."""

from __future__ import annotations

import pickle
from pathlib import Path

import numpy as np
import pytest

from tests.data.manifest.test_list_images import write_parquet, write_tar
from tests.training.running import write_pictures
from vitrail.data.layouts.recognise import read_dataset
from vitrail.data.loading import window_sampler
from vitrail.data.loading.split import digest_files, held_out_units, hold_out, make_units
from vitrail.data.manifest import manifest_items
from vitrail.data.manifest.list_images import list_images, place_of
from vitrail.data.manifest.manifest_file import Manifest, write_manifest
from vitrail.data.manifest.manifest_items import ManifestItems
from vitrail.data.manifest.survey import NO_CLASS, RECORD, Survey, held_out, look_at_shard
from vitrail.dataset import ItemsByPart, Sources, classes_at, targets_in


def manifest_of(data: Path, out: Path, shard_size: int = 7) -> Manifest:
    root, file = place_of(str(data))
    return write_manifest(list_images(root, file), root, out, shard_size)


def survey_of(manifest: Manifest, seed: int = 0) -> Survey:
    survey = Survey()
    for shard in manifest.shards:
        survey.add(look_at_shard(manifest, shard, seed))
    return survey


@pytest.mark.parametrize("fraction", [0.05, 0.2, 0.9])
def test_what_is_held_out_is_what_the_rule_of_folders_holds_out(fraction: float) -> None:
    """Also where copies have several classes, and chance leaves a class nothing on one side."""
    random = np.random.default_rng(0)
    for size in (1, 5, 30, 400):
        records = np.zeros(size, RECORD)
        records["number"] = random.random(size)[random.integers(0, size, size)]  # copies
        records["target"] = random.integers(0, 1 + size // 8, size)
        digests = [number.tobytes() for number in records["number"]]
        units, _ = make_units(digests, [None] * size, 0)
        numbers = dict(zip(units, records["number"].tolist(), strict=True))
        out = held_out_units(units, numbers, [(target,) for target in records["target"].tolist()], fraction)
        assert held_out(records, fraction).tolist() == [unit in out for unit in units]


def test_files_are_known_as_in_their_folder(tmp_path: Path) -> None:
    data = write_pictures(tmp_path / "data")
    (data / "cat" / "3.png").write_bytes((data / "cat" / "3.png").read_bytes()[:60])
    (data / "loose.png").write_bytes((data / "cat" / "4.png").read_bytes())
    manifest = manifest_of(data, tmp_path / "m")
    labels, records = survey_of(manifest, seed=3).in_order()
    folder = read_dataset(data)
    assert labels == folder.labels == ("cat", "dog", "owl")
    places = [place for shard in manifest.shards for place in manifest.rows(shard)]
    known = {str(data / row.file): record for row, record in zip(places, records, strict=True)}
    divided = hold_out(folder, 0.2, 3, digest_files([item.path for item in folder.items]))
    labelled = records[records["target"] != NO_CLASS]
    out = dict(zip(labelled["number"].tolist(), held_out(labelled, 0.2).tolist(), strict=True))
    for item in divided.items:
        record = known[str(item.path)]
        assert record["target"] == item.target and record["broken"] == (item.path.name == "3.png" and item.target == 0)
        assert out[float(record["number"])] == (item.split == "val")
    assert (known[str(data / "loose.png")]["target"], RECORD.itemsize) == (NO_CLASS, 16)


def test_broken_and_unlabelled_images_are_counted_and_named(tmp_path: Path) -> None:
    data = write_pictures(tmp_path / "data", each=4)
    pictures = {f"{place}.png": (data / "cat" / f"{place}.png").read_bytes() for place in range(4)}
    write_tar(data / "more.tar", {"0.png": pictures["0.png"], "1.png": b"no image", "1.cls": b"dog"})
    (data / "zz.tar").write_bytes(b"no tar")
    survey = survey_of(manifest_of(data, tmp_path / "m"))
    assert [error.name for error in survey.broken] == ["more.tar::1.png"]
    findings = {finding.kind: finding for finding in survey.left_out.findings()}
    assert findings["not-listed"].examples[0].files == (Path("zz.tar"),) and findings["not-listed"].count == 1
    assert findings["no-label"].examples[0].files == (Path("more.tar::0.png"),) and findings["no-label"].count == 1
    assert survey.usual_size == (16, 16) and survey.bits is None


def test_cells_of_a_row_group_lie_together(tmp_path: Path) -> None:
    write_pictures(tmp_path / "data", each=4)
    cells = [path.read_bytes() for path in sorted((tmp_path / "data").rglob("*.png"))]
    (tmp_path / "cells").mkdir()
    write_parquet(tmp_path / "cells" / "a.parquet", {"image": cells, "label": ["x", "y"] * 6}, rows=5)
    _, records = survey_of(manifest_of(tmp_path / "cells", tmp_path / "m")).in_order()
    starts = np.flatnonzero(~records["together"]).tolist()
    assert starts == [0, 5, 7, 10]  # three groups, and the second shard


def test_items_are_made_from_the_shards_when_they_are_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(manifest_items, "WINDOW", 7)
    data = write_pictures(tmp_path / "data")
    manifest = manifest_of(data, tmp_path / "m")
    labels, records = survey_of(manifest).in_order()
    numbers = np.arange(3, 60, 2, dtype=np.uint32)
    items = ManifestItems(manifest, numbers, records["target"][numbers], np.zeros(len(numbers), np.bool_), "train")
    rows = [row for shard in manifest.shards for row in manifest.rows(shard)]
    chosen = [rows[number] for number in numbers]
    assert [item.path for item in items] == [data / row.file for row in chosen]
    assert [labels[item.target] for item in items] == [row.label for row in chosen]
    assert items[-1] == items[len(items) - 1] and items[2:4] == [items[2], items[3]]
    assert len(items._tables) <= 3
    again = pickle.loads(pickle.dumps(items))
    assert again[5] == items[5] and targets_in(again).tolist() == [item.target for item in items]
    assert classes_at(items, [4]) == [items[4].classes()] and Sources(items)[4] == items[4].path
    every = ItemsByPart({"train": items, "val": (items[0],)})
    assert len(every) == 30 and every[29] == items[0] and list(every)[:2] == [items[0], items[1]]
    sampler = items.sampler(4, 0)
    drawn = np.concatenate([sampler.of_step(step).indices for step in range(7)])
    assert len(set(drawn)) == 28 and window_sampler.POOL > 0
