"""From folders, tars and Parquet files to rows: order, names, labels, and what cannot be listed."""

from __future__ import annotations

import io
import json
import os
import tarfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest

from vitrail.data.manifest import sorted_walk
from vitrail.data.manifest.list_images import list_images, place_of
from vitrail.data.manifest.manifest_file import open_manifest, write_manifest
from vitrail.data.manifest.manifest_row import ManifestRow
from vitrail.errors import VitrailError
from vitrail.inference.sources import images_of


def write_tar(path: Path, members: Mapping[str, bytes]) -> None:
    with tarfile.open(path, "w") as tar:
        for name, data in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))


def rows_of(data: Path | str) -> list[ManifestRow]:
    return list(list_images(*place_of(str(data))))


def test_folders_come_in_the_order_of_predict_with_split_and_class(tmp_path: Path) -> None:
    for name in (
        "train/cat/10.jpg",
        "train/cat/2.JPG",
        "train/dog/deep/a.png",
        "val/cat/1.jpg",
        "loose.png",
        "Äpfel/1.png",
    ):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(b"x")
    (tmp_path / ".hidden.jpg").write_bytes(b"x")
    (tmp_path / "notes.txt").write_text("x")
    (tmp_path / "train" / "dead.jpg").symlink_to("nowhere.jpg")
    (tmp_path / "train" / "again").symlink_to(tmp_path / "train")  # a circle
    os.mkfifo(tmp_path / "pipe.jpg")  # reading it would never end
    rows = rows_of(tmp_path)
    assert [row.file for row in rows] == [str(Path(p).relative_to(tmp_path)) for p in images_of(tmp_path)]
    by_name = {row.name: (row.split, row.label) for row in rows}
    assert by_name["train/cat/2.JPG"] == ("train", "cat") and by_name["train/dog/deep/a.png"] == ("train", "dog")
    assert by_name["loose.png"] == (None, None) and by_name["Äpfel/1.png"] == (None, "Äpfel")
    assert "train/dead.jpg" in by_name and "pipe.jpg" not in by_name


def test_webdataset_members_with_their_labels(tmp_path: Path) -> None:
    write_tar(
        tmp_path / "train-000.tar",
        {
            "0001.jpg": b"first",
            "0001.cls": b"7\n",
            "0002.json": json.dumps({"label": "owl", "caption": "x"}).encode(),
            "0002.png": b"second",
            "0002.seg.png": b"a mask, no image",
            "0003.jpg": b"third",
            "0003.json": b"{not json",
            "cat/0004.jpeg": b"in a class folder",
            "0005.txt": b"no image at all",
            "photo.v2.jpg": b"a dot in its name",
            "._0001.jpg": b"litter",
        },
    )
    rows = rows_of(tmp_path)
    names = ["0001.jpg", "0002.png", "0003.jpg", "cat/0004.jpeg", "photo.v2.jpg"]
    assert [row.name for row in rows] == [f"train-000.tar::{name}" for name in names]
    assert [row.label for row in rows] == ["7", "owl", None, "cat", None]
    assert [row.image(str(tmp_path)).read() for row in rows][:2] == [b"first", b"second"]
    assert rows_of(tmp_path / "train-000.tar") == rows  # the file by itself


def write_parquet(path: Path, columns: dict[str, Any], metadata: dict[str, str] | None = None, rows: int = 2) -> None:
    table = pyarrow.table(columns)
    pyarrow.parquet.write_table(table.replace_schema_metadata(metadata), path, row_group_size=rows)


def test_cells_of_parquet_files(tmp_path: Path) -> None:
    about = {"info": {"features": {"label": {"names": ["cat", "dog"]}}}}
    images = [{"bytes": b"image %d" % number, "path": None} for number in range(5)]
    columns = {"image": images, "label": [0, 1, 0, None, 9]}
    write_parquet(tmp_path / "hub.parquet", columns, {"huggingface": json.dumps(about)})
    write_parquet(tmp_path / "plain.parquet", {"jpg": [b"a", None], "thumb": [b"1", b"2"], "cls": ["x", "y"]})
    write_parquet(tmp_path / "table.parquet", {"image": ["cat/1.jpg"], "label": ["cat"]})  # paths, no bytes
    rows = rows_of(tmp_path)
    assert [row.name for row in rows] == [
        *(f"hub.parquet::{n}" for n in range(5)),
        *(f"plain.parquet::{n}" for n in range(2)),
    ]
    assert [row.label for row in rows] == ["cat", "dog", "cat", None, "9", "x", "y"]
    assert [(row.group, row.row) for row in rows[:5]] == [(0, 0), (0, 1), (1, 0), (1, 1), (2, 0)]
    read = [row.image(str(tmp_path)) for row in rows]
    assert [read[number].read() for number in (4, 0, 3, 5)] == [b"image 4", b"image 0", b"image 3", b"a"]
    with pytest.raises(VitrailError, match="plain.parquet::1 is empty"):
        read[6].read()


def test_what_is_broken_is_a_row_with_a_sentence(tmp_path: Path) -> None:
    write_tar(tmp_path / "1.tar", {"a.jpg": b"x" * 100, "b.jpg": b"x" * 2000})
    cut = (tmp_path / "1.tar").read_bytes()[: 512 + 512 + 512 + 40]
    (tmp_path / "1.tar").write_bytes(cut)
    (tmp_path / "2.tar").write_bytes(b"x" * 2000)
    (tmp_path / "3.tar.gz").write_bytes(b"x")
    (tmp_path / "4.parquet").write_bytes(b"PAR1 and nothing more PAR1")
    (tmp_path / "5.parquet").write_bytes(b"")
    rows = rows_of(tmp_path)
    assert [row.name for row in rows] == ["1.tar::a.jpg", "1.tar", "2.tar", "3.tar.gz", "4.parquet", "5.parquet"]
    errors = [row.error for row in rows]
    assert errors[0] is None and "truncated" in str(errors[1]) and "no tar" in str(errors[2])
    assert "unpack it" in str(errors[3]) and "Parquet" in str(errors[4]) and "Parquet" in str(errors[5])
    with pytest.raises(VitrailError, match="2.tar is damaged, or no tar"):
        rows[2].image(str(tmp_path)).read()


def test_labels_are_text_that_a_manifest_can_hold(tmp_path: Path) -> None:
    folder = os.fsencode(tmp_path) + b"/cl\xff"
    os.mkdir(folder)
    Path(os.fsdecode(folder), "1.jpg").write_bytes(b"x")
    members = {"1.jpg": b"x", "1.json": b'{"label": "\\ud800"}', "2.jpg": b"x", "2.cls": b"y" * 2000}
    write_tar(tmp_path / "a.tar", members)
    names = {"huggingface": json.dumps({"info": {"features": {"label": {"names": ["\ud800"]}}}})}
    write_parquet(tmp_path / "b.parquet", {"image": [b"1"], "label": [0]}, names)
    latin = pyarrow.array([b"caf\xe9"]).view(pyarrow.string())
    pyarrow.parquet.write_table(pyarrow.table({"image": [b"1"], "label": latin}), tmp_path / "c.parquet")
    manifest = write_manifest(list_images(*place_of(str(tmp_path))), str(tmp_path), tmp_path / "m")
    (rows,) = (open_manifest(tmp_path / "m").rows(shard) for shard in manifest.shards)
    found = {row.name: row.label for row in rows}
    assert found.pop("cl\udcff/1.jpg") == "cl\\udcff"
    assert [row.error for row in rows if row.error] == ["has text that is not UTF-8"]
    assert found == {"a.tar::1.jpg": "\\ud800", "a.tar::2.jpg": None, "b.parquet::0": "\\ud800", "c.parquet": None}


def test_a_row_group_that_would_fill_the_memory_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_parquet(tmp_path / "big.parquet", {"image": [os.urandom(2000), os.urandom(2000)]})
    monkeypatch.setattr("vitrail.data.manifest.parquet_cells.MOST_GROUP", 1000)
    (row,) = rows_of(tmp_path)
    assert row.error is not None and "has a row group of" in row.error


def repeated(value: str | bytes, rows: int) -> Any:
    """A column that takes next to nothing on disk."""
    return pyarrow.DictionaryArray.from_arrays(pyarrow.array([0] * rows, pyarrow.int32()), [value])


def test_images_and_labels_that_repeat_are_in_memory_once(tmp_path: Path) -> None:
    columns = {"image": repeated(b"x" * 1_000_000, 3000), "label": repeated("y" * 1_000_000, 3000)}
    pyarrow.parquet.write_table(pyarrow.table(columns), tmp_path / "a.parquet", compression="zstd", store_schema=False)
    before = pyarrow.total_allocated_bytes()
    rows = rows_of(tmp_path / "a.parquet")
    assert len(rows) == 3000 and rows[0].label is None
    assert len(rows[-1].image(str(tmp_path)).read()) == 1_000_000
    assert pyarrow.total_allocated_bytes() - before < 10_000_000  # what is kept of the row group; it was 3 GB


def test_rows_of_nothing_are_refused(tmp_path: Path) -> None:
    pyarrow.parquet.write_table(
        pyarrow.table({"image": pyarrow.nulls(50_000, pyarrow.binary())}), tmp_path / "a.parquet"
    )
    (row,) = rows_of(tmp_path)
    assert row.error is not None and "claims 50,000 rows in" in row.error


def test_images_that_swell_are_refused(tmp_path: Path) -> None:
    zeros = pyarrow.table({"image": [bytes(70_000_000)]})
    pyarrow.parquet.write_table(zeros, tmp_path / "a.parquet", compression="zstd")
    prefixes = pyarrow.table({"image": [b"x" * 100_000] * 3})
    options: dict[str, Any] = {"use_dictionary": False, "column_encoding": {"image": "DELTA_BYTE_ARRAY"}}
    pyarrow.parquet.write_table(prefixes, tmp_path / "b.parquet", **options)
    errors = [str(row.error) for row in rows_of(tmp_path)]
    assert len(errors) == 2 and "has a row group of 70," in errors[0] and "prefixes of one another" in errors[1]


def test_images_and_labels_whose_lengths_come_first_are_read(tmp_path: Path) -> None:
    """DuckDB and Spark write texts so; pyarrow cannot read these as dictionaries."""
    table = pyarrow.table({"image": [b"1", b"23", b"456"], "label": ["a", "b", None]})
    lengths: dict[str, Any] = {"column_encoding": dict.fromkeys(table.column_names, "DELTA_LENGTH_BYTE_ARRAY")}
    pyarrow.parquet.write_table(table, tmp_path / "a.parquet", use_dictionary=False, row_group_size=2, **lengths)
    rows = rows_of(tmp_path / "a.parquet")
    assert [row.image(str(tmp_path)).read() for row in rows] == [b"1", b"23", b"456"]
    assert [row.label for row in rows] == ["a", "b", None]


@pytest.mark.parametrize("column", ["number", "text"])
def test_a_cell_of_another_kind_is_no_image(tmp_path: Path, column: str) -> None:
    write_parquet(tmp_path / "a.parquet", {"number": [3 * 10**9], "text": ["abc"]})
    cell = ManifestRow("a.parquet", "0", column=column, group=0, row=0)
    with pytest.raises(VitrailError, match="has changed since the manifest was made"):  # 3 GB, and a traceback
        cell.image(str(tmp_path)).read()


def test_a_file_that_changed_after_it_was_listed_is_an_error_row(tmp_path: Path) -> None:
    write_tar(tmp_path / "a.tar", {"1.jpg": b"x" * 600})
    write_parquet(tmp_path / "b.parquet", {"image": [b"1", b"2", b"3"]})
    rows = rows_of(tmp_path)
    (tmp_path / "a.tar").write_bytes((tmp_path / "a.tar").read_bytes()[:700])
    write_parquet(tmp_path / "b.parquet", {"other": [b"1"]})
    with pytest.raises(VitrailError, match="a.tar::1.jpg is truncated: 188 of its 600 bytes"):
        rows[0].image(str(tmp_path)).read()
    with pytest.raises(VitrailError, match="b.parquet::2 lies in a file that has changed"):
        rows[3].image(str(tmp_path)).read()


def test_what_is_no_data_is_refused_in_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("x")
    with pytest.raises(VitrailError, match="does not exist"):
        place_of(str(tmp_path / "nothing"))
    with pytest.raises(VitrailError, match="neither a folder nor"):
        place_of(str(tmp_path / "a.txt"))


def test_names_beyond_the_memory_limit_are_sorted_through_files(tmp_path: Path) -> None:
    for number in range(50):
        (tmp_path / f"{number} é.jpg").write_bytes(b"")
        (tmp_path / f"folder {number}").mkdir()
        (tmp_path / f"folder {number}" / "x.png").write_bytes(b"")
    (tmp_path / os.fsdecode(b"\xff.jpg")).write_bytes(b"")
    whole = list(sorted_walk.walk(str(tmp_path), lambda name: True))
    assert list(sorted_walk.walk(str(tmp_path), lambda name: True, at_once=7)) == whole
    assert len(whole) == 101 and whole[:3] == ["0 é.jpg", "1 é.jpg", "2 é.jpg"]
