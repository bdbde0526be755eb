"""Outputs of shards: done is what is whole, and nothing else."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from vitrail.errors import VitrailError
from vitrail.shards.json_lines import JsonLines
from vitrail.shards.output_format import Counts, Stamp

STAMP = Stamp("job", "shard")


def written(path: Path, stamp: Stamp = STAMP) -> Path:
    with JsonLines.writing(path, stamp) as lines:
        lines.add('{"image": "a"}', False)
        lines.add('{"image": "ü", "error": "x"}', True)
    return path


def test_a_whole_file_is_counted_and_read(tmp_path: Path) -> None:
    path = str(written(tmp_path / "a.jsonl"))
    assert JsonLines().counts(path, STAMP) == Counts(2, 1)
    assert list(JsonLines.rows(path, STAMP)) == [{"image": "a"}, {"image": "ü", "error": "x"}]
    footer = json.loads((tmp_path / "a.jsonl").read_text().splitlines()[-1])
    assert footer["images"] == 2 and footer["errors"] == 1 and footer["vitrail_shard"] == 1


@pytest.mark.parametrize("cut", [1, 5, 200, 10_000])
def test_a_cut_or_absent_file_is_not_done(tmp_path: Path, cut: int) -> None:
    path = written(tmp_path / "a.jsonl")
    path.write_bytes(path.read_bytes()[:-cut])
    assert JsonLines().counts(str(path), STAMP) is None
    assert JsonLines().counts(str(tmp_path / "none"), STAMP) is None


def test_an_output_of_something_else_or_with_another_line_is_not_done(tmp_path: Path) -> None:
    path = str(written(tmp_path / "a.jsonl"))
    assert JsonLines().counts(path, Stamp("other", "shard")) is None
    assert JsonLines().counts(path, Stamp("job", "other")) is None
    Path(path).write_bytes(b"{}\n" + Path(path).read_bytes())
    assert JsonLines().counts(path, STAMP) is None


def test_merging_looks_at_every_byte(tmp_path: Path) -> None:
    first, second = written(tmp_path / "a"), written(tmp_path / "b", Stamp("job", "2"))
    files = [(str(first), STAMP), (str(second), Stamp("job", "2"))]
    assert JsonLines().merge(files, tmp_path / "all") == Counts(4, 2)
    rows = '{"image": "a"}\n{"image": "ü", "error": "x"}\n'
    assert (tmp_path / "all").read_text("utf-8") == rows * 2
    second.write_bytes(second.read_bytes().replace(b'"a"', b'"b"'))  # the footer alone would not tell
    assert JsonLines().counts(str(second), Stamp("job", "2")) == Counts(2, 1)
    with pytest.raises(VitrailError, match="is damaged: remove it"):
        JsonLines().merge(files, tmp_path / "all")


@pytest.mark.parametrize("change", [(b'{"image": "a"}', b'{"image": [a]}'), (b'"errors": 1', b'"errors":""')])
def test_damage_of_rows_and_counts_is_a_sentence(tmp_path: Path, change: tuple[bytes, bytes]) -> None:
    path = written(tmp_path / "a.jsonl")
    path.write_bytes(path.read_bytes().replace(*change))
    with pytest.raises(VitrailError, match="is damaged: remove it"):
        list(JsonLines.rows(str(path), STAMP))
    with pytest.raises(VitrailError, match="is damaged: remove it"):
        JsonLines().merge([(str(path), STAMP)], tmp_path / "all")
