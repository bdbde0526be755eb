"""Names as people write them and as terminals can bear them."""

from __future__ import annotations

import os
import unicodedata
from pathlib import Path

from vitrail.text import counted, listing, natural, nfc, shown


def test_numbers_sort_as_numbers() -> None:
    names = ["10", "2", "a10", "a9", "B1", "b", "1", "é", "a01", "a1", "Ä", "٣"]
    assert sorted(names, key=natural) == ["1", "2", "٣", "10", "a01", "a1", "a9", "a10", "b", "B1", "Ä", "é"]


def test_composed_and_decomposed_names_are_one() -> None:
    assert nfc(unicodedata.normalize("NFD", "café")) == "café"


def test_what_is_shown_can_be_printed_anywhere() -> None:
    undecodable = os.fsdecode(b"a\xff.jpg")
    for name in (undecodable, "a\x1b[31m.jpg", "a\nb.jpg", "a\u202eb.jpg"):
        text = shown(Path("/data") / name, Path("/data"))
        assert text.isprintable() and text.encode("utf-8")
        assert text.startswith("a") and "/" not in text


def test_shown_outside_its_root_is_whole() -> None:
    assert shown("/other/a.jpg", Path("/data")) == "/other/a.jpg"


def test_lists_and_counts_read_well() -> None:
    assert listing(["a", "b"]) == "a, b"
    assert listing(list("abcde")) == "a, b, c and 2 more"
    assert counted(1, "image") == "1 image" and counted(1234, "image") == "1,234 images"
    assert counted(2, "class", "classes") == "2 classes"
