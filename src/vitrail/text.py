"""Names of files and classes: how they are compared, ordered and shown."""

from __future__ import annotations

import contextlib
import json
import os
import re
import unicodedata
from collections.abc import Sequence
from pathlib import Path
from typing import Any

_DIGITS = re.compile(r"(\d+)")
_WHOLE = 20  # characters of a number of 64 bits
_LONGEST = 1000  # digits of a number; beyond, it is a name, and Python would refuse to read it
# Control characters but for the end of a line and the tab, which a terminal obeys; those that turn the direction of
# writing around; and halves of characters, which no encoding has. What joins letters and emoji stays.
_HARMFUL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
_BREAKS = re.compile("[\t-\r\x1c-\x1e\x85\u2028\u2029]+")  # where a line ends, and the tab


def nfc(text: str) -> str:
    """The composed form. macOS writes `é` as two code points, Linux as one: they are one name here."""
    return text if text.isascii() else unicodedata.normalize("NFC", text)


def natural(text: str) -> tuple[list[tuple[int, int, str]], str]:
    """A key for sorting in which `2` comes before `10`, and capitals stand beside their small letters."""
    pieces = [
        (0, int(piece), "") if piece.isdecimal() and len(piece) <= _LONGEST else (1, 0, piece.casefold())
        for piece in _DIGITS.split(text)
        if piece
    ]
    return pieces, text  # the text itself decides between `a1` and `a01`, so that the order is total


def shown(path: str | Path, root: Path | None = None) -> str:
    """A path to print: relative to `root`, and without anything that a terminal would obey or fail to encode."""
    if root is not None:
        with contextlib.suppress(ValueError):
            path = Path(path).relative_to(root)
    text = os.fspath(path)  # bytes that are no UTF-8 are halves of characters there, which cannot be printed
    if text.isprintable():  # a page holds megabytes of pictures as text
        return text
    return "".join(letter if letter.isprintable() else "\N{REPLACEMENT CHARACTER}" for letter in text)


def harmless(text: str) -> str:
    """Text for a terminal, in lines: what it would obey, or fail to encode, is replaced."""
    return _HARMFUL.sub("\N{REPLACEMENT CHARACTER}", text)


def one_line(text: str) -> str:
    """The same in one line, and harmless to a terminal."""
    return harmless(_BREAKS.sub(" ", text))


def json_text(value: Any, indent: int | None = None, encoding: str = "utf-8") -> str:
    """JSON as it is read best, or in plain ASCII, which has escapes for all, where a terminal or a file could not bear
    it."""
    text = json.dumps(value, indent=indent, ensure_ascii=False)
    try:
        text.encode(encoding)
    except UnicodeEncodeError:
        return json.dumps(value, indent=indent)
    return text if _HARMFUL.search(text) is None else json.dumps(value, indent=indent)


def parsed_json(text: str) -> Any:
    """What a JSON text that others wrote says. A whole number of more than 64 bits is a float, infinite beyond all
    floats, so that nothing that is computed from a number grows without measure."""
    return json.loads(text, parse_int=lambda digits: int(digits) if len(digits) <= _WHOLE else float(digits))


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
