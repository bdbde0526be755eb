"""The names of classes, and their colours in masks, from the files that usually hold them."""

from __future__ import annotations

import csv
import re
from collections.abc import Sequence
from pathlib import Path

from vitrail.data.dense_options import DenseOptions
from vitrail.data.names import nfc, shown
from vitrail.errors import VitrailError

NAME_FILES = ("classes.txt", "names.txt", "labels.txt", "class_names.txt", "obj.names", "data.yaml", "data.yml")
COLOUR_FILES = ("colours.txt", "colors.txt", "label_colors.txt", "class_dict.csv", "colours.csv", "colors.csv",
                "labelmap.txt")  # fmt: skip
_NUMBERED = re.compile(r"(\d+)\s*[\s:,;=]\s*(.+)")

Colour = tuple[int, int, int]


def class_names(options: DenseOptions, root: Path) -> tuple[dict[int, str], Path | None]:
    """Index -> name, and the file that says so; nothing where there is none."""
    path = options.file("classes", root) or _beside(root, NAME_FILES)
    return (read_names(path), path) if path is not None else ({}, None)


def class_colours(options: DenseOptions, root: Path) -> tuple[list[tuple[Colour, str]], Path | None]:
    """Colour and name of each class, in the file's order, and the file."""
    path = options.file("colours", root) or _beside(root, COLOUR_FILES)
    return (read_colours(path), path) if path is not None else ([], None)


def read_names(path: Path) -> dict[int, str]:
    """One name a line, counted from 0, or lines of `index name`; or the names of a YOLO data.yaml."""
    if path.suffix.lower() in (".yaml", ".yml"):
        return yaml_names(path)
    lines = [line for line in _lines(path) if not line.startswith("#")]
    numbered = [_NUMBERED.fullmatch(line) for line in lines]
    if lines and all(numbered):
        found = {int(match[1]): match[2].strip() for match in numbered if match}
    else:
        found = dict(enumerate(lines))
    return _checked(path, found, len(lines))


def read_colours(path: Path) -> list[tuple[Colour, str]]:
    """`R G B name` a line, a CSV with the columns r, g, b and name in any order, or CVAT's `name:R,G,B::`."""
    lines = [line for line in _lines(path) if not line.startswith("#")]
    found = []
    for number, cells in enumerate(_cells(line) for line in lines):
        if number == 0 and not any(cell.isdigit() for cell in cells):
            continue  # the names of the columns
        numbers, words = (cells[:3], cells[3:]) if cells[0].isdigit() else (cells[-3:], cells[:-3])
        if len(numbers) < 3 or not words or not all(cell.isdigit() and int(cell) < 256 for cell in numbers):
            raise VitrailError(f"{shown(path)}: {lines[number]!r} is not 'R G B name' with numbers from 0 to 255")
        found.append(((int(numbers[0]), int(numbers[1]), int(numbers[2])), " ".join(words)))
    if not found:
        raise VitrailError(f"{shown(path)} names no colour: a line for each class, such as '128 0 0 car'")
    if len({colour for colour, _ in found}) < len(found):
        raise VitrailError(f"{shown(path)} has a colour twice: each class needs its own")
    return found


def yaml_names(path: Path) -> dict[int, str]:
    """`names:` of a YOLO file, in the three ways in which it is written."""
    lines = _text(path).splitlines()
    start = next((n for n, line in enumerate(lines) if re.match(r"names\s*:", line)), None)
    if start is None:
        return {}
    inline = lines[start].partition(":")[2].split(" #")[0].strip()
    if inline.startswith(("[", "{")):
        rest = inline + " ".join(lines[start + 1 :])
        closing = rest.index("]" if inline[0] == "[" else "}") if re.search(r"[\]}]", rest) else len(rest)
        pieces = next(csv.reader([rest[1:closing].replace("'", '"')], skipinitialspace=True), [])
    else:
        pieces = []
        for line in lines[start + 1 :]:
            if line.strip() and not line.startswith((" ", "-", "\t")):
                break
            if line.strip() and not line.strip().startswith("#"):
                pieces.append(line.strip().removeprefix("-"))
    found: dict[int, str] = {}
    for place, piece in enumerate(_unquoted(piece) for piece in pieces if piece.strip()):
        match = re.fullmatch(r"(\d+)\s*:\s*(.+)", piece)
        found[int(match[1]) if match else place] = _unquoted(match[2]) if match else piece
    return _checked(path, found, len(found))


def yaml_value(path: Path, key: str) -> str:
    """A plain `key: value` of a YAML file."""
    for line in _text(path).splitlines():
        if re.match(rf"{key}\s*:", line):
            return _unquoted(line.partition(":")[2].split(" #")[0])
    return ""


# ---- parts


def _beside(root: Path, names: Sequence[str]) -> Path | None:
    return next((root / name for name in names if (root / name).is_file()), None)


def _lines(path: Path) -> list[str]:
    return [nfc(line.strip()) for line in _text(path).splitlines() if line.strip()]


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError:
        raise VitrailError(f"{shown(path)} is not UTF-8 text: save it again as UTF-8") from None
    except OSError as error:
        raise VitrailError(f"cannot read {shown(path)}: {error.strerror or error}") from None


def _cells(line: str) -> list[str]:
    cut = line.split("::")[0].replace(":", " ")  # CVAT's parts and actions
    return [cell for cell in map(_unquoted, re.split(r"[,;\s]+", cut)) if cell]


def _unquoted(text: str) -> str:
    return text.strip().strip("'\"").strip()


def _checked(path: Path, found: dict[int, str], lines: int) -> dict[int, str]:
    if not found:
        raise VitrailError(f"{shown(path)} names no class: a name on each line")
    if len(found) < lines or len(set(found.values())) < len(found):
        raise VitrailError(f"{shown(path)} names a class twice")
    return dict(sorted(found.items()))
