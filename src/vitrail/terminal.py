"""What is printed for people: lines, tables and errors, drawn by rich on a terminal, plain text elsewhere.

Names of files and classes, labels and notes come from files that anybody may have written. Here, on their way out, they
lose what a terminal would obey."""

from __future__ import annotations

import re
import sys
import unicodedata
from collections.abc import Sequence
from typing import TextIO

from vitrail.text import harmless, shown

_BOLD = re.compile("(\x1b\\[[01]m)")  # bold and plain again, as our own tables have it


def print_text(text: str, stream: TextIO | None = None) -> None:
    """Print text for people, at once: on standard output, or on another stream."""
    stream = sys.stdout if stream is None else stream
    parts = _BOLD.split(text)  # every second one is a code
    plain = "".join(part if place % 2 else harmless(part) for place, part in enumerate(parts))
    encoding = getattr(stream, "encoding", None) or "utf-8"
    stream.write(plain.encode(encoding, "backslashreplace").decode(encoding) + "\n")
    stream.flush()


def print_error(sentence: str) -> None:
    """`vitrail: ...` on standard error, in one line."""
    sentence = harmless(sentence)
    if not sys.stderr.isatty():
        print(f"vitrail: {sentence}", file=sys.stderr)
        return
    from rich.console import Console
    from rich.text import Text

    line = Text.assemble(("vitrail:", "bold red"), " ", sentence)
    Console(stderr=True).print(line, soft_wrap=True, highlight=False)  # the terminal breaks the line: it may be copied


def table(rows: Sequence[Sequence[str]], left: int = 1, header: bool = True) -> str:
    """Cells in columns as lines of text, the first `left` columns to the left, numbers to the right.

    On a terminal the header, which is the first row, is bold.
    """
    rows = [[shown(cell) for cell in row] for row in rows]  # a cell is one line, whatever a class is called
    return _rich_table(rows, left) if header and sys.stdout.isatty() else _plain_table(rows, left)


def width_of(text: str) -> int:
    """Columns on a terminal, where Chinese, Japanese and Korean letters take two."""
    return sum(0 if unicodedata.combining(c) else 2 if unicodedata.east_asian_width(c) in "WF" else 1 for c in text)


def _plain_table(rows: Sequence[Sequence[str]], left: int) -> str:
    widths = [max(map(width_of, column)) for column in zip(*rows, strict=True)]
    lines = []
    for row in rows:
        cells = []
        for index, (cell, width) in enumerate(zip(row, widths, strict=True)):
            space = " " * (width - width_of(cell))
            cells.append(cell + space if index < left else space + cell)
        lines.append(("  " + "   ".join(cells)).rstrip())
    return "\n".join(lines)


def _rich_table(rows: Sequence[Sequence[str]], left: int) -> str:
    from rich.console import Console
    from rich.padding import Padding
    from rich.table import Table
    from rich.text import Text

    drawn = Table(box=None, pad_edge=False, padding=(0, 3, 0, 0), header_style="bold")
    for index, title in enumerate(rows[0]):
        drawn.add_column(Text(title), justify="left" if index < left else "right", no_wrap=True)
    for row in rows[1:]:
        drawn.add_row(*(Text(cell) for cell in row))
    console = Console()
    with console.capture() as lines:
        console.print(Padding(drawn, (0, 0, 0, 2)))
    return "\n".join(line.rstrip() for line in lines.get().splitlines())
