"""A table whose rows take hours: each is kept, printed and written to the page once it is measured.

A later failure loses none of them. Another call adds rows to the section or replaces those of the same name; what the
section shows is the last call's command. To begin anew, remove the file of rows in the folder of work.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from training.results import table_row, write_section


@dataclass(frozen=True)
class KeptTable:
    """A section of a page of results."""

    page: Path
    kept: Path  # JSON: rows by their titles and names
    title: str
    head: Sequence[str]
    packages: Sequence[str]
    heading: str

    def add(self, name: str, *cells: str) -> None:
        """A row, and the section with it."""
        rows = keep(self.kept, self.title, name, cells)
        lines = [table_row(*self.head), "|---" * len(self.head) + "|"]
        lines += [table_row(name, *cells) for name, cells in rows.items()]
        write_section(self.page, self.title, lines, self.packages, self.heading)


def keep(file: Path, title: str, name: str, value: Any) -> dict[str, Any]:
    """Write a value down -> all that is kept under this title."""
    everything = json.loads(file.read_text()) if file.exists() else {}
    everything.setdefault(title, {})[name] = value
    beside = file.with_name(file.name + ".new")
    beside.write_text(json.dumps(everything, indent=1))
    beside.replace(file)
    return everything[title]


def kept_value(file: Path, title: str, name: str) -> Any:
    """What `keep` wrote down; None: nothing."""
    return json.loads(file.read_text()).get(title, {}).get(name) if file.exists() else None
