"""The images and other files of a folder, without what systems leave behind."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path

from vitrail.errors import VitrailError
from vitrail.images.decode import ENDINGS
from vitrail.text import natural, nfc, shown

# What operating systems, archives and photo servers leave behind; anything that starts with a dot is ignored as well.
_LITTER = {
    "__macosx", "thumbs.db", "ehthumbs.db", "desktop.ini", "icon\r", "@eadir",
    "$recycle.bin", "system volume information", "lost+found",
}  # fmt: skip


def is_litter(name: str) -> bool:
    """Whether a name is that of a hidden file or of one that systems leave behind."""
    return name.startswith(".") or name.casefold() in _LITTER


def is_image(name: str) -> bool:
    """Whether a name has the ending of an image file."""
    return os.path.splitext(name)[1].lower() in ENDINGS


@dataclass
class Listing:
    """What lies in a folder and below it."""

    images: list[Path] = field(default_factory=list)
    others: list[Path] = field(default_factory=list)  # files that are no images by their ending
    dead: list[Path] = field(default_factory=list)  # links that lead nowhere, or in a circle
    special: list[Path] = field(default_factory=list)  # pipes, sockets, devices: to read one may never end


def subfolders(folder: Path) -> list[Path]:
    """The folders right below, links to folders too, in natural order."""
    return sorted(
        (Path(entry) for entry in _entries(folder) if not is_litter(entry.name) and _is(entry.is_dir)),
        key=lambda path: natural(nfc(path.name)),
    )


def scan(folder: Path, *, deep: bool = True, above: Iterable[Path] = ()) -> Listing:
    """The files of a folder, and with `deep` of all folders in it. Links are followed, but no folder is entered twice,
    nor one of those `above`: a link that leads back up would never end, and would bring other classes with it."""
    listing, entered = Listing(), {_identity(one) for one in above}
    waiting = [folder]
    while waiting:
        here = waiting.pop()
        identity = _identity(here)
        if identity in entered:
            continue
        entered.add(identity)
        for entry in _entries(here):
            if is_litter(entry.name):
                continue
            if _is(entry.is_dir):
                if deep:
                    waiting.append(Path(entry))
            elif _is(entry.is_file):
                (listing.images if is_image(entry.name) else listing.others).append(Path(entry))
            else:
                (listing.special if os.path.exists(entry) else listing.dead).append(Path(entry))
    for paths in (listing.images, listing.others, listing.dead, listing.special):
        paths.sort(key=lambda path: (nfc(str(path)), str(path)))
    return listing


# ---- parts


def _entries(folder: Path) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as entries:
            return list(entries)
    except OSError as error:
        raise VitrailError(f"cannot open the folder {shown(folder)}: {error.strerror or error}") from None


def _is(kind: Callable[[], bool]) -> bool:
    """`entry.is_dir` or `entry.is_file`, which raise where a link leads to itself."""
    try:
        return kind()
    except OSError:
        return False


def _identity(folder: Path) -> tuple[int, int]:
    """The folder itself, whatever it is called and however it was reached."""
    status = folder.stat()
    return status.st_dev, status.st_ino
