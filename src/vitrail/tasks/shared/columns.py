"""The columns of a table of images, from which a task takes its targets."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vitrail.errors import VitrailError
from vitrail.text import listing, nfc, shown

RESERVED = ("image", "label", "labels", "split", "group")
MOST_NAMES = 20  # of columns in a sentence


@dataclass
class Table:
    """Columns of cells, and where each row stands in its file."""

    path: Path
    columns: dict[str, list[Any]]  # reserved names in small letters, others as written
    lines: list[int]
    unit: str = "line"

    def __len__(self) -> int:
        return len(self.lines)

    def places(self, rows: Sequence[int]) -> str:
        """`line 3` or `lines 3, 7, 9 and 12 more`."""
        unit = self.unit if len(rows) == 1 else self.unit + "s"
        return f"{unit} {listing([self.lines[row] for row in rows])}"

    def column_names(self) -> str:
        """To print: in one line, and of many the first."""
        return shown(listing(list(self.columns), MOST_NAMES)) or "none"

    def check_labelled(self, task: str) -> None:
        """Refuse a table without labels, and one that names them in two columns."""
        name = shown(self.path)
        if "label" in self.columns and "labels" in self.columns:
            raise VitrailError(
                f"{name} has both 'label' and 'labels': keep 'label' for one class an image, 'labels' for several"
            )
        if "label" not in self.columns and "labels" not in self.columns:
            raise VitrailError(f"{name} has no column 'label' or 'labels', which task={task!r} needs")

    def text(self, name: str) -> list[str]:
        """A column as text; empty where nothing is."""
        return ["" if cell is None else nfc(str(cell)).strip() for cell in self.columns[name]]


def is_numeric(cells: Sequence[Any]) -> bool:
    """At least half of what is there are numbers. The rest, if any, is then an error to name, not a column of words."""
    there = [cell for cell in cells if cell is not None and str(cell).strip()]
    return bool(there) and sum(as_number(cell) is not None for cell in there) * 2 >= len(there)


def as_number(cell: Any) -> float | None:
    try:
        return float(cell)
    except (TypeError, ValueError):
        return None
