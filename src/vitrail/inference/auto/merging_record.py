"""How many tokens were found to be merged within an allowed drop, a small file each in the user's cache folder."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from vitrail.errors import VitrailError
from vitrail.files import cache_folder, write_text
from vitrail.terminal import print_error

FOLDER = "merging"


@dataclass(frozen=True)
class Merging:
    """How many tokens are merged for each block, and what that was found to change."""

    r: int
    change: str = ""  # in words; "": it was not measured
    compared: int = 0  # pictures that it was measured on
    date: str = ""
    speedups: Mapping[str, float] = field(default_factory=dict)  # against merging none, by what runs it
    key: str = ""  # the name of its record


def read_merging(key: str) -> Merging | None:
    """What was found before; None where nothing was, or where the file is not what we wrote."""
    try:
        found = Merging(**json.loads(_path(key).read_text(encoding="utf-8")))
        valid = isinstance(found.r, int) and found.r >= 0 and isinstance(found.compared, int)
        speedups = {str(name): float(speedup) for name, speedup in found.speedups.items()}
    except (OSError, ValueError, TypeError, AttributeError, RecursionError):
        return None
    return dataclasses.replace(found, speedups=speedups, key=key) if valid else None


def write_merging(found: Merging) -> None:
    """Remember it. A folder that cannot be written is said, and nothing else happens."""
    try:
        write_text(_path(found.key), json.dumps(dataclasses.asdict(found), indent=1))
    except VitrailError as error:
        print_error(f"the number of merged tokens is not kept for next time: {error}")


def _path(key: str) -> Path:
    return cache_folder() / FOLDER / f"{key}.json"
