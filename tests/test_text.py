"""Names as people write them and as terminals can bear them."""

from __future__ import annotations

import json
import math
import os
import unicodedata
from pathlib import Path

from vitrail.errors import VitrailError
from vitrail.storage import Missing
from vitrail.text import counted, harmless, json_text, listing, natural, nfc, parsed_json, shown


def test_numbers_sort_as_numbers() -> None:
    names = ["10", "2", "a10", "a9", "B1", "b", "1", "é", "a01", "a1", "Ä", "٣"]
    assert sorted(names, key=natural) == ["1", "2", "٣", "10", "a01", "a1", "a9", "a10", "b", "B1", "Ä", "é"]


def test_a_number_beyond_64_bits_is_a_float() -> None:
    assert parsed_json(f"[{2**64 - 1}, {-(2**63)}, 1e3]") == [2**64 - 1, -(2**63), 1000.0]
    assert parsed_json("1" + "0" * 30) == 1e30 and parsed_json("-1" + "0" * 400) == -math.inf
    assert parsed_json("9" * 5000) == math.inf  # json.loads would raise what is no JSONDecodeError


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


def test_a_number_of_thousands_of_digits_can_be_sorted() -> None:
    long, longer = "a" + "9" * 5000, "a" + "9" * 5001
    assert sorted([longer, "b", long, "a2"], key=natural) == ["a2", long, longer, "b"]


def test_text_for_a_terminal_keeps_its_lines_and_letters() -> None:
    text = "猫 café\n\tक्\u200dष म\u200cन 👩\u200d🚀"  # with what joins letters, and keeps them apart
    assert harmless(text) == text
    for letter in ("\x1b", "\x9b", "\r", "\x07", "\x7f", "\u202e", "\u2066", "\ud800", "\udcff", "\u2028"):
        assert harmless(f"a{letter}[31mb") == "a\N{REPLACEMENT CHARACTER}[31mb"


def test_an_error_is_one_line_whatever_it_quotes() -> None:
    for quoted in ("a\nb", "a\r\nb", "a\tb", "a\x0bb", "a\x85b", "a\u2028b", "a\u2029\nb"):
        assert str(VitrailError(f"there is no column {quoted}")) == "there is no column a b"
    assert str(VitrailError("two  spaces and \x1b[31m")) == "two  spaces and \N{REPLACEMENT CHARACTER}[31m"
    assert str(Missing("a\nb.png", "is not there")) == "a b.png is not there"


def test_json_for_a_terminal_is_the_same_json() -> None:
    for name in ("猫", "a\x9b31m", "\ud800", "a\u202eb", "\x1b[31m"):
        text = json_text({"name": name})
        assert json.loads(text) == {"name": name} and harmless(text) == text
    assert "猫" in json_text(["猫"]) and "猫" not in json_text(["猫"], encoding="latin-1")
