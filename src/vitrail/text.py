"""Names of files and classes: how they are compared, ordered and shown."""

from __future__ import annotations

import contextlib
import os
import re
import unicodedata
from collections.abc import Sequence
from pathlib import Path

_DIGITS = re.compile(r"(\d+)")


def nfc(text: str) -> str:
    """The composed form. macOS writes `é` as two code points, Linux as one: they are one name here."""
    return text if text.isascii() else unicodedata.normalize("NFC", text)


def natural(text: str) -> tuple[list[tuple[int, int, str]], str]:
    """A key for sorting in which `2` comes before `10`, and capitals stand beside their small letters."""
    pieces = [
        (0, int(piece), "") if piece.isdecimal() else (1, 0, piece.casefold()) for piece in _DIGITS.split(text) if piece
    ]
    return pieces, text  # the text itself decides between `a1` and `a01`, so that the order is total


def shown(path: str | Path, root: Path | None = None) -> str:
    """A path to print: relative to `root`, and without anything that a terminal would obey or fail to encode."""
    if root is not None:
        with contextlib.suppress(ValueError):
            path = Path(path).relative_to(root)
    text = os.fsencode(path).decode("utf-8", "replace")
    if text.isprintable():  # a page holds megabytes of pictures as text
        return text
    return "".join(letter if letter.isprintable() else "\N{REPLACEMENT CHARACTER}" for letter in text)


def listing(names: Sequence[object], limit: int = 3) -> str:
    """`a, b, c and 4 more`."""
    text = ", ".join(str(name) for name in names[:limit])
    return f"{text} and {len(names) - limit:,} more" if len(names) > limit else text


def counted(number: int, noun: str, plural: str | None = None) -> str:
    """`1 image`, `1,234 images`, `2 classes`."""
    return f"{number:,} {noun if number == 1 else plural or noun + 's'}"


def joined(names: Sequence[str]) -> str:
    """`age`, `age and weight`, `age, height and weight`; of many the first few."""
    if len(names) > 6:
        return listing(names, 5)
    return " and ".join([", ".join(names[:-1]), names[-1]]) if len(names) > 1 else "".join(names)
