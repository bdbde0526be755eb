"""Files, folders and standard input as one stream of paths."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path

import pytest

from vitrail.errors import VitrailError
from vitrail.inference.prefetch import PAUSE, Pause
from vitrail.inference.sources import expand, images_of, lines_of


def touch(root: Path, *names: str) -> None:
    for name in names:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(b"x")


def test_a_folder_gives_its_images_in_natural_order_and_no_litter(tmp_path: Path) -> None:
    touch(tmp_path, "10.jpg", "2.jpg", "b/1.png", "a/3.PNG", "a/deep/ü ö.webp", "notes.txt")
    touch(tmp_path, ".hidden.jpg", "__MACOSX/2.jpg", "Thumbs.db", ".git/x.png")
    found = [str(Path(path).relative_to(tmp_path)) for path in images_of(tmp_path)]
    assert found == ["2.jpg", "10.jpg", "a/3.PNG", "a/deep/ü ö.webp", "b/1.png"]


def test_a_dead_link_is_not_passed_over(tmp_path: Path) -> None:
    touch(tmp_path, "a.jpg")
    (tmp_path / "b.jpg").symlink_to(tmp_path / "gone.jpg")
    assert [Path(path).name for path in images_of(tmp_path)] == ["a.jpg", "b.jpg"]


def test_arguments_keep_their_order_and_what_is_missing_comes_too(tmp_path: Path) -> None:
    touch(tmp_path, "f/1.png", "f/2.png", "z.txt")
    found = list(expand([tmp_path / "z.txt", str(tmp_path / "f"), "nowhere.jpg", tmp_path / "f" / "1.png"]))
    assert [Path(str(path)).name for path in found] == ["z.txt", "1.png", "2.png", "nowhere.jpg", "1.png"]


@pytest.mark.parametrize("text", ["", "./a.jpg", "a//b.jpg", "x" * 5000, "a\0b.jpg"])
def test_what_is_no_folder_keeps_its_spelling(text: str) -> None:
    assert list(expand([text])) == [text]


def test_lines_come_one_by_one_with_a_pause_where_the_writer_waits(tmp_path: Path) -> None:
    touch(tmp_path, "f/1.png", "f/2.png")
    read, write = os.pipe()

    def writer() -> None:
        os.write(write, "a b.jpg\r\n\nü.png\nhal".encode())
        time.sleep(0.6)
        os.write(write, b"f.jpg\n" + os.fsencode(tmp_path / "f"))
        os.close(write)

    threading.Thread(target=writer).start()
    found = list(expand(["first.jpg", "-", "last.jpg"], stdin=read))
    os.close(read)
    names = [one if isinstance(one, Pause) else Path(one).name for one in found]
    assert names == ["first.jpg", "a b.jpg", "ü.png", PAUSE, "half.jpg", "1.png", "2.png", "last.jpg"]


def test_more_lines_than_are_kept(tmp_path: Path) -> None:
    (tmp_path / "list").write_bytes(b"".join(b"%d.jpg\n" % n for n in range(50_000)))
    descriptor = os.open(tmp_path / "list", os.O_RDONLY)
    lines = [line for line in lines_of(descriptor) if line is not PAUSE]
    os.close(descriptor)
    assert lines == [f"{n}.jpg" for n in range(50_000)]


def test_a_name_that_is_no_unicode_stays_itself() -> None:
    read, write = os.pipe()
    os.write(write, b"\xff.jpg\n")
    os.close(write)
    assert [os.fsencode(path) for path in expand(["-"], stdin=read) if not isinstance(path, Pause)] == [b"\xff.jpg"]
    os.close(read)


def test_an_input_that_cannot_be_read_is_an_error(tmp_path: Path) -> None:
    descriptor = os.open(tmp_path, os.O_RDONLY)
    with pytest.raises(VitrailError, match="cannot read standard input: "):
        list(lines_of(descriptor))
    os.close(descriptor)
