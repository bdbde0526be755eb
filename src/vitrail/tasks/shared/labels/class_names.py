"""The names of classes, and their colours in masks, from the files that usually hold them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from vitrail.errors import VitrailError
from vitrail.files import read_text
from vitrail.tasks.dense_options import DenseOptions
from vitrail.tasks.shared.labels.yaml_names import yaml_names
from vitrail.text import nfc, shown

NAME_FILES = ("classes.txt", "names.txt", "labels.txt", "class_names.txt", "obj.names", "data.yaml", "data.yml")
COLOUR_FILES = ("colours.txt", "colors.txt", "label_colors.txt", "class_dict.csv", "colours.csv", "colors.csv",
                "labelmap.txt")  # fmt: skip
HIGHEST_INDEX = 65_535  # every index up to the highest becomes a class
_LEVEL = re.compile(r"[0-9]{1,3}")  # of red, green or blue
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
        names = yaml_names(path, read_text(path))
        return {} if names is None else _checked(path, names)
    lines = [line for line in _lines(path) if not line.startswith("#")]
    numbered = [_NUMBERED.fullmatch(line) for line in lines]
    if lines and all(numbered):
        return _checked(path, [(int(match[1][:20]), match[2].strip()) for match in numbered if match])
    return _checked(path, [*enumerate(lines)])


def read_colours(path: Path) -> list[tuple[Colour, str]]:
    """`R G B name` a line, a CSV with the columns r, g, b and name in any order, or CVAT's `name:R,G,B::`."""
    lines = [line for line in _lines(path) if not line.startswith("#")]
    colours = []
    for number, cells in enumerate(_cells(line) for line in lines):
        if number == 0 and not any(_LEVEL.fullmatch(cell) for cell in cells):
            continue  # the names of the columns
        numbers, words = (cells[:3], cells[3:]) if cells and _LEVEL.fullmatch(cells[0]) else (cells[-3:], cells[:-3])
        if len(numbers) < 3 or not words or not all(_LEVEL.fullmatch(cell) and int(cell) < 256 for cell in numbers):
            raise VitrailError(f"{shown(path)}: {lines[number]!r} is not 'R G B name' with numbers from 0 to 255")
        colours.append(((int(numbers[0]), int(numbers[1]), int(numbers[2])), " ".join(words)))
    if not colours:
        raise VitrailError(f"{shown(path)} names no colour: a line for each class, such as '128 0 0 car'")
    if len({colour for colour, _ in colours}) < len(colours):
        raise VitrailError(f"{shown(path)} has a colour twice: each class needs its own")
    return colours


# ---- parts


def _beside(root: Path, names: Sequence[str]) -> Path | None:
    return next((root / name for name in names if (root / name).is_file()), None)


def _lines(path: Path) -> list[str]:
    return [nfc(line.strip()) for line in read_text(path).splitlines() if line.strip()]


def _cells(line: str) -> list[str]:
    cut = line.split("::")[0].replace(":", " ")  # CVAT's parts and actions
    return [cell for cell in map(_unquoted, re.split(r"[,;\s]+", cut)) if cell]


def _unquoted(text: str) -> str:
    return text.strip().strip("'\"").strip()


def _checked(path: Path, names: Sequence[tuple[int, str]]) -> dict[int, str]:
    """Index -> name, in the order of the indices."""
    if not names:
        raise VitrailError(f"{shown(path)} names no class: a name on each line")
    if len({index for index, _ in names}) < len(names) or len({name for _, name in names}) < len(names):
        raise VitrailError(f"{shown(path)} names a class twice")
    highest = max(index for index, _ in names)
    if highest > HIGHEST_INDEX:
        raise VitrailError(f"{shown(path)} gives a class the number {highest:,}: numbers go up to {HIGHEST_INDEX:,}")
    return dict(sorted(names))
