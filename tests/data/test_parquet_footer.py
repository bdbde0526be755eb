"""Footers that pyarrow reads, and that would end the process when it is asked about a column."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from vitrail.data.layouts.table_file import read_table
from vitrail.data.manifest.list_images import list_images, place_of
from vitrail.data.parquet_file import open_parquet
from vitrail.errors import VitrailError

pyarrow = pytest.importorskip("pyarrow")
parquet: Any = pytest.importorskip("pyarrow.parquet")


def with_footer(path: Path, old: bytes, new: bytes) -> None:
    """The file with other bytes in its footer."""
    data = path.read_bytes()
    length = int.from_bytes(data[-8:-4], "little")
    footer = data[-8 - length : -8]
    assert old in footer
    footer = footer.replace(old, new)
    path.write_bytes(data[: -8 - length] + footer + len(footer).to_bytes(4, "little") + b"PAR1")


def test_size_statistics_that_do_not_fit_the_schema_are_refused(tmp_path: Path) -> None:
    parquet.write_table(pyarrow.table({"image": [b"x"], "label": ["a"]}), tmp_path / "a.parquet")
    with_footer(tmp_path / "a.parquet", b"\x26\x00\x02", b"\x36\x00\x02\x00")  # two levels become three
    with pytest.raises(VitrailError, match="a.parquet has a footer that contradicts itself"):  # it was SIGABRT
        read_table(tmp_path / "a.parquet")
    (row,) = list_images(*place_of(str(tmp_path / "a.parquet")))
    assert row.error is not None and "contradicts itself" in row.error


@pytest.mark.parametrize("rows", [0, 1, 20])
def test_what_pyarrow_writes_is_sound(tmp_path: Path, rows: int) -> None:
    columns = {
        "image": pyarrow.array([{"bytes": b"1", "path": None}] * rows, None if rows else pyarrow.list_(pyarrow.int8())),
        "labels": pyarrow.array([["a", None], None] * rows, pyarrow.list_(pyarrow.string()))[:rows],
        "map": pyarrow.array([[("k", 1.5)]] * rows, pyarrow.map_(pyarrow.string(), pyarrow.float64())),
        "on": pyarrow.array([True] * rows, pyarrow.bool_()),
        "many": pyarrow.array([list(range(40))] * rows, pyarrow.list_(pyarrow.int64(), 40)),
    }
    table = pyarrow.table(columns).replace_schema_metadata({f"key {number}": "x" * 300 for number in range(20)})
    for options in ({}, {"version": "1.0", "write_statistics": False}, {"row_group_size": 3}):
        parquet.write_table(table, tmp_path / "a.parquet", **options)
        with open_parquet(tmp_path / "a.parquet") as file:
            assert file.metadata.num_rows == rows
