"""A few kills of `index --add`: nothing is lost, and what would be is noticed."""

from __future__ import annotations

import random
import sys
from pathlib import Path

import pytest

if sys.platform != "linux":
    pytest.skip("it reads /proc and kills by SIGKILL", allow_module_level=True)
pytest.importorskip("pyarrow")

from benchmarks.index_kills import check_complete, check_whole, contents, kill_index
from benchmarks.kills import Tally, finished, killed, save_model
from tests.image_files import photo
from tests.warm_process import begin_vitrail, run_vitrail
from vitrail.search.index.image_index import ImageIndex
from vitrail.search.index.index_writer import writing_index
from vitrail.search.vector_file import Row


def test_a_few_kills_lose_and_double_nothing(tmp_path: Path) -> None:
    tally = kill_index(tmp_path, 4, random.Random(1))
    assert tally.counts["kills"] >= 4 and tally.counts["ended"] >= 1 and not tally.counts["failed"]


def test_a_killed_embed_goes_on_to_the_same_bytes(tmp_path: Path) -> None:
    chance, tally, pictures = random.Random(2), Tally("embed"), tmp_path / "pictures"
    pictures.mkdir()
    for number in range(150):
        photo(number, (64, 64)).save(pictures / f"{number}.png")
    model = save_model(tmp_path / "model.safetensors", 0)
    command = ["embed", model, pictures, "--batch-size", "1"]
    seconds = finished([*command, "--out", tmp_path / "whole.parquet"], tally)
    parts = tmp_path / ".killed.parquet.parts"
    for _ in range(3):
        killed(begin_vitrail([*command, "--out", tmp_path / "killed.parquet"]), seconds, chance, (tmp_path, parts))
    finished([*command, "--out", tmp_path / "killed.parquet"], tally)
    assert (tmp_path / "killed.parquet").read_bytes() == (tmp_path / "whole.parquet").read_bytes()
    assert not tally.counts["failed"] and not parts.exists()


def test_losses_and_doubles_are_noticed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pictures, idx = tmp_path / "pictures", tmp_path / "idx"
    pictures.mkdir()
    for number in range(4):
        photo(number, (64, 64)).save(pictures / f"{number}.png")
    model = save_model(tmp_path / "model.safetensors", 0)
    assert run_vitrail(["index", model, pictures, "--out", idx]).returncode == 0
    tally, before = Tally("index"), contents(idx)
    check_whole(idx, before, pictures, tally)
    check_complete(idx, pictures, tally)
    assert not tally.counts["failed"]
    with writing_index(idx) as writer:
        [(id_, _, digest), *_] = ImageIndex(idx).entries()
        writer.commit([Row(-1, str(pictures / "twin.png"), digest, writer.vector(id_))])
    check_whole(idx, before, pictures, tally)
    assert tally.counts["failed"] == 1 and "twice" in capsys.readouterr().err
    with writing_index(idx) as writer:
        writer.commit(removed=[one for one, _, other in ImageIndex(idx).entries() if other == digest])
    check_whole(idx, before, pictures, tally)
    assert tally.counts["failed"] == 2 and "lost" in capsys.readouterr().err
    (idx / "index.json").write_text("{")
    check_whole(idx, before, pictures, tally)
    assert tally.counts["failed"] == 3 and "cannot be read" in capsys.readouterr().err
