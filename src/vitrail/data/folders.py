"""Images in folders: `DATA/<class>/...`, and `DATA/{train,val,test}/<class>/...`."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from vitrail.data.collection import Collection, Item, split_name
from vitrail.data.findings import Finding, single
from vitrail.data.images import ENDINGS
from vitrail.data.names import counted, listing, natural, nfc, shown
from vitrail.errors import VitrailError

# What operating systems, archives and photo servers leave behind; anything that starts with a dot is ignored as well.
_LITTER = {
    "__macosx", "thumbs.db", "ehthumbs.db", "desktop.ini", "icon\r", "@eadir",
    "$recycle.bin", "system volume information", "lost+found",
}  # fmt: skip


def is_litter(name: str) -> bool:
    return name.startswith(".") or name.casefold() in _LITTER


def is_image(name: str) -> bool:
    return os.path.splitext(name)[1].lower() in ENDINGS


@dataclass
class Found:
    """What lies in a folder and below it."""

    images: list[Path] = field(default_factory=list)
    others: list[Path] = field(default_factory=list)  # files that are no images by their ending
    dead: list[Path] = field(default_factory=list)  # links that lead nowhere


def subfolders(folder: Path) -> list[Path]:
    """The folders right below, links to folders too, in natural order."""
    return sorted(
        (Path(entry) for entry in _entries(folder) if not is_litter(entry.name) and entry.is_dir()),
        key=lambda path: natural(nfc(path.name)),
    )


def scan(folder: Path, *, deep: bool = True, above: Iterable[Path] = ()) -> Found:
    """The files of a folder, and with `deep` of all folders in it. Links are followed, but no folder is entered twice,
    nor one of those `above`: a link that leads back up would never end, and would bring other classes with it."""
    found, entered = Found(), {_identity(one) for one in above}
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
            if entry.is_dir():
                if deep:
                    waiting.append(Path(entry))
            elif not entry.is_file():
                (found.dead if entry.is_symlink() else found.others).append(Path(entry))
            else:
                (found.images if is_image(entry.name) else found.others).append(Path(entry))
    for paths in (found.images, found.others, found.dead):
        paths.sort(key=lambda path: (nfc(str(path)), str(path)))
    return found


def from_folders(root: Path, task: str | None = None) -> Collection:
    """`DATA/<class>/...`: every image below a class folder is of that class."""
    classes = subfolders(root)
    inside = {folder: scan(folder, above=[root]) for folder in classes}
    loose = scan(root, deep=False)
    if not any(found.images for found in inside.values()):
        raise _no_classes(root, loose, classes)
    return _collection(root, "folders", task, {None: inside}, loose, [])


def from_split_folders(root: Path, task: str | None = None) -> Collection:
    """`DATA/{train,val,test}/<class>/...`."""
    parts: dict[str | None, dict[Path, Found]] = {}
    loose, strangers = scan(root, deep=False), []
    for folder in subfolders(root):
        part = split_name(folder.name)
        if part is None:
            strangers.append(folder)
            continue
        inside = parts.setdefault(part, {})
        inside.update({one: scan(one, above=[root, folder]) for one in subfolders(folder)})
        here = scan(folder, deep=False)
        loose.images += here.images
        loose.others += here.others
    if not any(found.images for inside in parts.values() for found in inside.values()):
        raise VitrailError(
            f"{shown(root)} has folders for parts, but no class folders with images in them: "
            "train/cat/1.jpg is what is looked for (for classes with such names use layout='folders')"
        )
    return _collection(root, "split-folders", task, parts, loose, strangers)


# ---- parts


def _collection(
    root: Path,
    layout: str,
    task: str | None,
    parts: dict[str | None, dict[Path, Found]],
    loose: Found,
    strangers: list[Path],
) -> Collection:
    if task == "multilabel":
        raise VitrailError(
            "folders give one label an image: for several, use a table with the columns image and labels"
        )
    everything = [(split, folder, found) for split, inside in parts.items() for folder, found in inside.items()]
    names = sorted({nfc(folder.name) for _, folder, found in everything if found.images}, key=natural)
    number = {name: index for index, name in enumerate(names)}
    items = []
    for split, folder, found in sorted(everything, key=lambda one: (_order(one[0]), natural(nfc(one[1].name)))):
        target: int | tuple[float, ...]
        target = _as_number(folder) if task == "regress" else number.get(nfc(folder.name), 0)
        items += [Item(path, target, split) for path in found.images]
    return Collection(
        root=root,
        layout=layout,
        task=task or "classify",
        labels=("number",) if task == "regress" else tuple(names),
        items=tuple(items),
        findings=_findings(root, everything, names, loose, strangers),
    )


def _findings(
    root: Path, everything: list[tuple[str | None, Path, Found]], names: list[str], loose: Found, strangers: list[Path]
) -> tuple[Finding, ...]:
    findings = []
    empty = [folder for _, folder, found in everything if not found.images and nfc(folder.name) not in names]
    if empty:
        title = f"{counted(len(empty), 'class folder is', 'class folders are')} empty: {_names(empty, root)}"
        advice = "add images or remove it; it is left out"
        findings.append(Finding("empty-class", "warning", title, advice, len(empty)))
    if loose.images:
        title = f"{counted(len(loose.images), 'image lies', 'images lie')} outside the class folders"
        advice = "move into a class folder what should be used; the rest is left out"
        findings.append(Finding("loose-images", "warning", title, advice, len(loose.images), single(loose.images)))
    outside = [image for folder in strangers for image in scan(folder, above=[root]).images]
    if outside:
        where = f"outside train, val and test: {_names(strangers, root)}"
        title = f"{counted(len(outside), 'image lies', 'images lie')} {where}"
        advice = "move into a part what should be used; the rest is left out"
        findings.append(Finding("other-folders", "warning", title, advice, len(outside), single(outside)))
    dead = [link for _, _, found in everything for link in found.dead] + loose.dead
    if dead:
        title = f"{counted(len(dead), 'link leads', 'links lead')} nowhere"
        findings.append(
            Finding("missing", "error", title, "restore the files or remove the links", len(dead), single(dead))
        )
    others = [file for _, _, found in everything for file in found.others] + loose.others
    if others:
        kinds = listing(sorted({file.suffix.lower() or file.name for file in others}), 4)
        title = f"{counted(len(others), 'file is no image', 'files are no images')} ({kinds})"
        advice = "nothing to do, if that is meant: they are left out"
        findings.append(Finding("other-files", "note", title, advice, len(others), single(others)))
    return tuple(findings)


def _no_classes(root: Path, loose: Found, classes: list[Path]) -> VitrailError:
    if loose.images:
        return VitrailError(
            f"{shown(root)} holds {counted(len(loose.images), 'image')} but no class folders: put the images of each "
            "class into a folder of its own, or add a CSV with the columns image and label"
        )
    others = loose.others + [file for folder in classes for file in scan(folder, above=[root]).others]
    what = f", only {counted(len(others), 'other file')} such as {shown(others[0].name)}" if others else ""
    empty = f" in its {counted(len(classes), 'folder')}" if classes else ""
    return VitrailError(
        f"{shown(root)} holds no images{empty}{what}: one folder for each class is looked for (cat/1.jpg), or a CSV"
    )


def _as_number(folder: Path) -> tuple[float, ...]:
    try:
        value = float(folder.name)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise VitrailError(
            f"the folder {shown(folder)} is not named by a number, which task='regress' takes as the target"
        )
    return (value,)


def _order(split: str | None) -> int:
    return ("train", "val", "test").index(split) if split else 0


def _names(folders: list[Path], root: Path) -> str:
    return listing([shown(folder, root) for folder in folders])


def _entries(folder: Path) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as entries:
            return list(entries)
    except OSError as error:
        raise VitrailError(f"cannot open the folder {shown(folder)}: {error.strerror or error}") from None


def _identity(folder: Path) -> tuple[int, int]:
    """The folder itself, whatever it is called and however it was reached."""
    status = folder.stat()
    return status.st_dev, status.st_ino
