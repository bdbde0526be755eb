"""Files that are whole or not there, and what is left of those whose writer was killed."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from vitrail.data.loading.cache import Shape, keep_in_file
from vitrail.files import DAY, remove_unfinished, replacing
from vitrail.training.run_folder import RunFolder


def leave(folder: Path, name: str, age: float) -> Path:
    """What a process leaves that is killed while it writes a file of this name."""
    with pytest.raises(KeyboardInterrupt), replacing(folder / name) as part:
        kept = part.with_name(part.name)
        content = folder / "kept"
        os.link(part, content)
        raise KeyboardInterrupt
    os.rename(content, kept)
    os.utime(kept, (time.time() - age,) * 2)
    return kept


def test_what_a_killed_writer_left_goes_with_the_next_one(tmp_path: Path) -> None:
    old, young, other = leave(tmp_path, "a[1]", 2 * DAY), leave(tmp_path, "a[1]", 60), leave(tmp_path, "b", 2 * DAY)
    with replacing(tmp_path / "a[1]") as temporary:
        temporary.write_text("new")
    assert (tmp_path / "a[1]").read_text() == "new"
    assert not old.exists()
    assert young.exists() and other.exists()  # somebody may be writing it; and it is not ours to judge


def test_all_of_a_folder(tmp_path: Path) -> None:
    parts = [leave(tmp_path, name, 0) for name in ("a", "b.safetensors")]
    for name in (".mine.part", "a.12345678.part", "a"):
        (tmp_path / name).write_text("of the user")
    remove_unfinished(tmp_path)
    assert not any(part.exists() for part in parts)
    assert {path.name for path in tmp_path.iterdir()} == {".mine.part", "a.12345678.part", "a"}
    remove_unfinished(tmp_path / "nowhere")


def test_a_run_removes_its_own(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "run")
    folder.open(resume=False)
    parts = [leave(folder.path, "plan.json", 0), leave(folder.checkpoints, "step-00000001.safetensors", 0)]
    with folder.locked():
        assert not any(part.exists() for part in parts)


def test_the_cache_removes_those_of_other_data(tmp_path: Path) -> None:
    old, young = leave(tmp_path, "x.npy", 2 * DAY), leave(tmp_path, "y.npy", 60)
    keep_in_file([], Shape(4, 4, 3), tmp_path, 1)
    assert not old.exists() and young.exists()
