"""Findings about files: counted where there are some, silent where there are none."""

from __future__ import annotations

from pathlib import Path

from vitrail.data.layouts.annotation_files import check_annotation_files
from vitrail.findings import Example, about_files

FILE, PAIR = Path("a.jpg"), Example((Path("b.jpg"), Path("c.jpg")), "are the same")


def test_files_and_examples_are_counted_once_each() -> None:
    [finding] = about_files("odd", "warning", "2 are odd", "look at them", [FILE, PAIR])
    assert (finding.kind, finding.severity, finding.title, finding.advice) == (
        "odd",
        "warning",
        "2 are odd",
        "look at them",
    )
    assert finding.count == 2 and finding.examples == (Example((FILE,)), PAIR)
    assert about_files("odd", "warning", "none is odd", "nothing to do", []) == []


def test_annotation_files_are_named_as_their_format_does() -> None:
    broken, lone = check_annotation_files("text file", [PAIR, PAIR], [FILE])
    assert (broken.kind, broken.title, broken.count) == ("broken-annotations", "2 text files cannot be read", 2)
    assert (lone.kind, lone.title) == ("no-image", "1 text file has no image")
    assert lone.advice == "restore the images or remove the text files"
    assert check_annotation_files("text file", [], []) == []


def test_a_name_with_a_newline_begins_no_line_of_its_own() -> None:
    (finding,) = about_files("few", "warning", "class 'cat\nerror    all' has 1 image", "add\nmore", [Path(__file__)])
    assert "\n" not in finding.title + finding.advice and finding.title.startswith("class 'cat")
