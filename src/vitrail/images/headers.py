"""The size of a picture without its pixels, and how it is stored."""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from PIL import Image

from vitrail.images.arrays import is_tiff, load_tiff
from vitrail.images.decode import facts_of, known_formats, read_file
from vitrail.images.header_checks import check_file
from vitrail.images.unreadable import UnreadableImage
from vitrail.threads import in_threads

Size = tuple[int, int]  # height, width


@dataclass(frozen=True, slots=True)
class Header:
    """The size and the EXIF orientation of a picture."""

    size: Size  # of the picture as it is read: after its EXIF orientation
    orientation: int = 1


def headers(paths: Sequence[Path]) -> list[Header | None]:
    """The header of each picture; None where a file is no picture, which others report."""
    return in_threads(header, paths)


def header(path: Path) -> Header | None:
    """The header of one picture, without decoding it; None where the file is no picture."""
    try:
        if path.suffix.lower() == ".npy":
            height, width = np.load(path, mmap_mode="r", allow_pickle=False).shape[:2]
            return Header((height, width))
        tiff = _checked_tiff(path)
        with Image.open(path if tiff is None else io.BytesIO(tiff), formats=known_formats()) as image:
            facts = facts_of(image)
            return Header((facts.height, facts.width), facts.orientation)
    except Exception:  # damaged files raise many things
        return _of_many_channels(path) if path.suffix.lower() in (".tif", ".tiff") else None


def _checked_tiff(path: Path) -> bytes | None:
    """The bytes of a TIFF within bounds, None of another file: only a TIFF costs more than its header to open."""
    with path.open("rb") as file:
        start = file.read(4)
    if not is_tiff(start):
        return None
    data = read_file(path)
    check_file(data, str(path))
    return data


def _of_many_channels(path: Path) -> Header | None:
    try:
        height, width, _ = load_tiff(read_file(path), str(path)).shape
    except UnreadableImage:
        return None
    return Header((height, width))
