"""A finding is one line, whatever a class is called."""

from __future__ import annotations

from pathlib import Path

from vitrail.findings import about_files


def test_a_name_with_a_newline_begins_no_line_of_its_own() -> None:
    (finding,) = about_files("few", "warning", "class 'cat\nerror    all' has 1 image", "add\nmore", [Path(__file__)])
    assert "\n" not in finding.title + finding.advice and finding.title.startswith("class 'cat")
