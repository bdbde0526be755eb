"""Images listed in a CSV or Parquet file: `image`, and `label`, `labels` or numbers; perhaps `split` and `group`."""

from __future__ import annotations

import csv
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from vitrail.data.parquet_file import UnpacksTooMuch, most_bytes, open_parquet, rows_at_once, unpacked_bytes, values_of
from vitrail.data.parquet_footer import UnsoundFooter
from vitrail.errors import VitrailError
from vitrail.tasks.shared.columns import RESERVED, Table, is_numeric
from vitrail.text import nfc, shown

ENDINGS = (".csv", ".tsv", ".parquet")
_PEEK = 20  # rows that are enough to tell a column of numbers
_MISSING = 1_000_000  # cells that rows may lack, beyond one for each byte of the file
_CELLS_A_BYTE = 32  # of a Parquet file, where values that repeat take next to no room
_BATCH = 10_000  # rows of a Parquet file that are unpacked at once


def read_table(path: Path, rows: int | None = None) -> Table:
    """The whole table, or its first rows."""
    try:
        return _read_parquet(path, rows) if path.suffix.lower() == ".parquet" else _read_csv(path, rows)
    except UnicodeDecodeError:
        raise VitrailError(f"{shown(path)} is not UTF-8 text: save it again as 'CSV UTF-8'") from None
    except (OSError, csv.Error) as error:
        raise VitrailError(f"cannot read {shown(path)}: {getattr(error, 'strerror', None) or error}") from None


def lists_images(path: Path) -> bool:
    """Whether a file beside images is such a table, by its column names and first rows."""
    try:
        table = read_table(path, _PEEK)
    except VitrailError:
        return False
    numbers = [name for name in table.columns if name not in RESERVED and is_numeric(table.columns[name])]
    return "image" in table.columns and bool(numbers or {"label", "labels"} & table.columns.keys())


class Finder:
    """From a cell to a file: paths are relative to the table, and may be written on another system."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._listings: dict[str, dict[str, str]] = {}

    def find(self, text: str) -> Path | None:
        """The file that a cell names, or None where there is none."""
        for written in dict.fromkeys((text, text.strip(), text.strip().replace("\\", "/"))):
            path = self.root / written
            if os.path.isfile(path):
                return path
            if not written.isascii() and (composed := self._by_composition(written)) is not None:
                return composed
        return None

    def _by_composition(self, written: str) -> Path | None:
        """The same name in another Unicode form: `é` of one code point where the disk has two, or the reverse."""
        here = self.root
        for part in Path(written).parts:
            name = part if part in ("..", "/") else self._names(here).get(nfc(part))
            if name is None:
                return None
            here = here / name
        return here if os.path.isfile(here) else None

    def _names(self, folder: Path) -> dict[str, str]:
        key = str(folder)
        if key not in self._listings:
            try:
                self._listings[key] = {nfc(name): name for name in sorted(os.listdir(folder))}
            except OSError:
                self._listings[key] = {}
        return self._listings[key]


# ---- reading


def _read_csv(path: Path, rows: int | None) -> Table:
    with path.open(encoding="utf-8-sig", newline="") as file:
        first = file.readline()
        file.seek(0)
        reader = csv.reader(file, delimiter=_delimiter(first), strict=True)
        header = next(reader, [])
        names, places = _column_names(path, header)
        columns: dict[str, list[Any]] = {name: [] for name in names}
        lines: list[int] = []
        missing = _MISSING + os.path.getsize(path)
        for row in reader:
            if not any(cell.strip() for cell in row):
                continue
            missing -= max(0, len(header) - len(row))
            if missing < 0:  # a few letters a row would fill the memory with empty cells
                raise VitrailError(
                    f"{shown(path)} names {len(header):,} columns, and most rows have far fewer cells "
                    f"(line {reader.line_num} has {len(row)}): write every row in full"
                )
            for name, place in zip(names, places, strict=True):
                columns[name].append(row[place] if place < len(row) else "")
            lines.append(reader.line_num)
            if len(lines) == rows:
                break
    return Table(path, columns, lines)


def _delimiter(header: str) -> str:
    """A comma, or the semicolon or tab that a spreadsheet wrote: whichever sets the column `image` free."""
    for delimiter in (",", ";", "\t"):
        names = next(csv.reader([header], delimiter=delimiter), [])
        if "image" in {name.strip().casefold() for name in names}:
            return delimiter
    return ","


def _column_names(path: Path, header: Sequence[str]) -> tuple[list[str], list[int]]:
    """The names and places of columns that have a name; pandas writes its row numbers under none."""
    names, places, taken = [], [], set()
    for place, written in enumerate(header):
        name = nfc(written.strip())
        if not name or name.casefold().startswith("unnamed:"):
            continue
        name = name.casefold() if name.casefold() in RESERVED else name
        if name in taken:
            raise VitrailError(f"{shown(path)} has two columns called {name!r}: rename or remove one")
        taken.add(name)
        names.append(name)
        places.append(place)
    return names, places


def _read_parquet(path: Path, rows: int | None) -> Table:
    try:
        import pyarrow
    except ImportError:
        raise VitrailError(
            f"{shown(path)} is a Parquet file, which needs one more package: pip install pyarrow, or save it as CSV"
        ) from None
    try:
        columns, count = _unpacked(path, rows)
    except UnsoundFooter as error:
        raise VitrailError(f"{shown(path)} {error}") from None
    except pyarrow.ArrowException as error:
        raise VitrailError(f"cannot read {shown(path)}: {error}") from None
    if rows is not None and not count:
        raise VitrailError(f"cannot read {shown(path)}: it has no rows")
    return Table(path, columns, list(range(1, count + 1)), unit="row")


def _unpacked(path: Path, rows: int | None) -> tuple[dict[str, list[Any]], int]:
    """The columns of a Parquet file, and how many rows were read."""
    with open_parquet(path) as file:
        names, places = _column_names(path, file.schema_arrow.names)
        written = [file.schema_arrow.names[place] for place in places]
        _check_unpacked(path, file.metadata)
        columns: dict[str, list[Any]] = {name: [] for name in names}
        size, count = os.path.getsize(path), 0
        most = left = most_bytes(size)
        for batch in _batches(file, rows_at_once(file, size, rows or _BATCH), written):
            count += batch.num_rows
            left -= sum(map(unpacked_bytes, batch.columns))
            if left < 0:
                raise UnpacksTooMuch(f"repeats long texts and unpacks to more than {most:,} bytes: save it as CSV")
            for name, old in zip(names, written, strict=True):
                columns[name] += values_of(batch.column(old))
            if rows is not None and count >= rows:
                break
    return columns, count


def _batches(file: Any, rows: int, columns: Sequence[str]) -> Iterator[Any]:
    """So many rows of a Parquet file at a time, of one row group: each has dictionaries of its own, and pyarrow cannot
    join those inside of lists and structs."""
    for group in range(file.metadata.num_row_groups):
        yield from file.iter_batches(rows, row_groups=[group], columns=columns)


def _check_unpacked(path: Path, metadata: Any) -> None:
    """Refuse a file that repeats a few values beyond measure, by what its footer says of each column."""
    groups = [metadata.row_group(index) for index in range(metadata.num_row_groups)]
    cells = sum(group.column(index).num_values for group in groups for index in range(group.num_columns))
    most = _MISSING + _CELLS_A_BYTE * os.path.getsize(path)
    if cells > most:
        raise VitrailError(
            f"{shown(path)} unpacks to {cells:,} cells, more than {most:,} for a file of its size: save it as CSV"
        )
