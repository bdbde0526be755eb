"""Bytes by address: what is missing is one thing, a store that does not answer another."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from vitrail import storage
from vitrail.errors import VitrailError
from vitrail.storage import Missing, Unavailable


@pytest.mark.parametrize("root", ["memory://storage-test", None])
def test_files_here_and_on_a_store(root: str | None, tmp_path: Path) -> None:
    root = root or f"file://{tmp_path}"
    storage.write_bytes(storage.join(root, "folder/a.bin"), b"0123456789")
    with storage.writing(storage.join(root, "folder/b.bin")) as file:
        file.write_bytes(b"b")
    path = storage.join(root, "folder/a.bin")
    assert storage.read_bytes(path) == b"0123456789"
    assert storage.read_range(path, 2, 3) == b"234" and storage.read_range(path, 8, 9) == b"89"
    assert storage.size_of(path) == 10 and storage.size_of(storage.join(root, "none")) is None
    with storage.open_file(path) as opened:
        opened.seek(4)
        assert opened.read(2) == b"45"
    assert storage.is_folder(storage.join(root, "folder")) and not storage.is_folder(path)
    listed = {entry.name: entry for entry in storage.entries(storage.join(root, "folder"))}
    assert sorted(listed) == ["a.bin", "b.bin"] and listed["a.bin"].is_file
    assert storage.read_bytes(listed["b.bin"].path) == b"b"
    with pytest.raises(Missing, match="does not exist"):
        storage.read_bytes(storage.join(root, "none"))


def test_a_pipe_is_no_file(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for read in (storage.read_bytes, storage.open_file):
        with pytest.raises(Missing, match="is a pipe or a device"):
            read(tmp_path / "pipe")


def test_a_file_that_was_not_finished_is_not_there(tmp_path: Path) -> None:
    for path in (str(tmp_path / "a"), "memory://storage-test/half"):
        with pytest.raises(RuntimeError), storage.writing(path) as file:
            file.write_bytes(b"half")
            raise RuntimeError
        assert storage.size_of(path) is None


def test_a_disk_that_does_not_answer_is_asked_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(storage, "PATIENCE", 0.0)
    asked: list[int] = []

    def read(path: str, offset: int, length: int | None) -> bytes:
        asked.append(offset)
        if len(asked) < storage.TRIES:
            raise OSError(errno.ESTALE, "Stale file handle")
        return b"at last"

    monkeypatch.setattr(storage, "_read", read)
    assert storage.read_bytes(tmp_path / "x") == b"at last"
    asked[:] = [0] * -100
    with pytest.raises(Unavailable, match="tried 4 times: Stale file handle"):
        monkeypatch.setattr(storage, "_read", lambda *_: (_ for _ in ()).throw(OSError(errno.EIO, "Stale file handle")))
        storage.read_bytes(tmp_path / "x")
    with pytest.raises(Missing, match="cannot be read: File name too long"):
        monkeypatch.undo()
        storage.read_bytes(tmp_path / ("x" * 300))


def test_a_store_that_breaks_off_is_not_a_missing_file(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(storage, "PATIENCE", 0.0)
    fs, _ = storage.filesystem("memory://x")
    monkeypatch.setattr(fs, "cat_file", lambda *_, **__: (_ for _ in ()).throw(ConnectionError("reset by peer")))
    with pytest.raises(Unavailable, match="reset by peer"):
        storage.read_bytes("memory://x/y")


def test_unknown_stores_and_missing_packages_are_sentences(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(VitrailError, match="no kind of store"):
        storage.read_bytes("nosuch://bucket/x")
    monkeypatch.setitem(__import__("sys").modules, "gcsfs", None)
    with pytest.raises(VitrailError, match="gs:// needs one more package"):
        storage.read_bytes("gs://bucket/x")
