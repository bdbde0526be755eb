"""Images in one folder, a file about each in another: which folders and which files belong together.

Masks lie like this, and depth maps do. A task says by `PairNaming` what its folders and files are called.
"""

from __future__ import annotations

import re
from collections.abc import Container, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from vitrail.dataset import split_name
from vitrail.errors import VitrailError
from vitrail.files import read_text
from vitrail.findings import Finding, single
from vitrail.images.listing import scan, subfolders
from vitrail.text import counted, nfc, shown

IMAGES = ("images", "image", "imgs", "img", "jpegimages", "leftimg8bit")


@dataclass(frozen=True)
class PairNaming:
    """What the files about the images are called, and their folders."""

    noun: str  # "mask"
    looked_for: str  # in words, for the sentence on a folder that has none
    example: str  # of `pairs` as a user writes them
    folders: tuple[str, ...]  # beside a folder of images; in small letters
    suffixes: tuple[str, ...] = ()  # X/ has the images, X + one of these the files about them
    file_ends: re.Pattern[str] | None = None  # what a file's name has after the image's
    image_ends: re.Pattern[str] | None = None  # what tells images and their files apart, on both sides
    left_out: tuple[str, ...] = ()  # ends of names of files beside them that are something else
    lists: tuple[str, str] = ("", "")  # a folder (in small letters) whose parts are listed in files of another


@dataclass(frozen=True)
class FolderPair:
    """Two folders of which one has the files about the other's images."""

    images: Path
    others: Path


@dataclass(frozen=True)
class FilePair:
    image: Path
    other: Path
    part: str | None = None


# ---- which folders


def find_pairs(root: Path, naming: PairNaming, written: str = "") -> list[FolderPair]:
    """Those that the user names ('train:trainannot, val:valannot'), else those that are there."""
    if written:
        return _written(root, written)
    top = subfolders(root)
    pairs = [*_named(top, naming)]
    for folder in top:
        if split_name(folder.name) is not None:
            pairs += _named(subfolders(folder), naming)
    names = {folder.name.casefold(): folder for folder in top}
    for folder in top:
        other = next((names[key] for end in naming.suffixes if (key := folder.name.casefold() + end) in names), None)
        if other is not None:
            pairs.append(FolderPair(folder, other))
    return [pair for pair in pairs if _belong(pair, naming)]


def _written(root: Path, written: str) -> list[FolderPair]:
    pairs = []
    for piece in written.split(","):
        images, colon, others = (part.strip() for part in piece.partition(":"))
        if not (images and colon and others):
            raise VitrailError(f"pairs are written as 'images:masks, more:of-them', and {piece.strip()!r} is not")
        for name in (images, others):
            if not (root / name).is_dir():
                raise VitrailError(f"there is no folder {shown(root / name)}, which pairs names")
        pairs.append(FolderPair(root / images, root / others))
    return pairs


def _named(folders: Sequence[Path], naming: PairNaming) -> Iterator[FolderPair]:
    """Folders called so: images and masks."""
    by_name = {folder.name.casefold(): folder for folder in folders}
    images = next((by_name[name] for name in IMAGES if name in by_name), None)
    for name in naming.folders:
        if images is not None and name in by_name and _belong(FolderPair(images, by_name[name]), naming):
            yield FolderPair(images, by_name[name])
            return


def _belong(pair: FolderPair, naming: PairNaming) -> bool:
    """Half of the files about images, or more, are called as an image is."""
    images = {_key(path, pair.images, naming) for path in scan(pair.images).images}
    others = _by_key(scan(pair.others).images, pair.others, images, naming)
    return bool(others) and 2 * len(others.keys() & images) >= len(others)


# ---- which files


def match_files(root: Path, pairs: Sequence[FolderPair], naming: PairNaming) -> tuple[list[FilePair], list[Finding]]:
    """The files of all folders that belong together, train first, and what is left over on either side."""
    matches: list[FilePair] = []
    bare: list[Path] = []
    strange: list[Path] = []
    for pair in pairs:
        images = {_key(path, pair.images, naming): path for path in scan(pair.images).images}
        others = _by_key(scan(pair.others).images, pair.others, images.keys(), naming)
        parts = _listed_parts(root, pair, naming)
        if parts is not None:  # a list says which images have a file
            images = {key: path for key, path in images.items() if key in parts or key in others}
        matches += [
            FilePair(path, others[key], _part(pair, key, parts)) for key, path in images.items() if key in others
        ]
        bare += [path for key, path in images.items() if key not in others]
        strange += [path for key, path in others.items() if key not in images]
    order = {"train": 0, None: 0, "val": 1, "test": 2}
    matches.sort(key=lambda match: (order[match.part], nfc(str(match.image))))
    return matches, _left_over(bare, strange, naming.noun)


def _left_over(bare: Sequence[Path], strange: Sequence[Path], noun: str) -> list[Finding]:
    findings = []
    if bare:
        title = f"{counted(len(bare), 'image has', 'images have')} no {noun}"
        advice = f"add a {noun} of the same name, or remove the image; it is left out"
        findings.append(Finding(f"no-{noun.replace(' ', '-')}", "error", title, advice, len(bare), single(bare)))
    if strange:
        title = f"{counted(len(strange), f'{noun} has', f'{noun}s have')} no image"
        advice = f"add the image, or remove the {noun}; it is left out"
        findings.append(Finding("no-image", "warning", title, advice, len(strange), single(strange)))
    return findings


def _key(path: Path, folder: Path, naming: PairNaming) -> str:
    """The name below its folder, without what tells images and the files about them apart."""
    inside = path.relative_to(folder).with_suffix("")
    if naming.image_ends is not None:
        inside = inside.with_name(naming.image_ends.sub("", inside.name))
    return nfc(str(inside))


def _by_key(paths: Sequence[Path], folder: Path, images: Container[str], naming: PairNaming) -> dict[str, Path]:
    """Files by the name of their image: the same, or with an end such as _mask that no image has."""
    by_key: dict[str, Path] = {}
    for path in paths:
        if naming.left_out and path.stem.endswith(naming.left_out):
            continue
        key = _key(path, folder, naming)
        if key not in images and naming.file_ends is not None:
            key = naming.file_ends.sub("", key)
        by_key.setdefault(key, path)
    return by_key


def _part(pair: FolderPair, key: str, parts: dict[str, str] | None) -> str | None:
    """train, val or test: from a list, from a folder inside, or from the pair's own folders."""
    if parts:
        return parts.get(key)
    inside = split_name(Path(key).parts[0]) if len(Path(key).parts) > 1 else None
    return inside or split_name(pair.images.name) or split_name(pair.images.parent.name)


def _listed_parts(root: Path, pair: FolderPair, naming: PairNaming) -> dict[str, str] | None:
    """Of Pascal VOC: ImageSets/Segmentation/train.txt and so on; None where the folder has no lists."""
    folder_name, lists = naming.lists
    if not folder_name or pair.others.name.casefold() != folder_name:
        return None
    parts: dict[str, str] = {}
    for part in ("train", "val", "test"):
        path = root / lists / f"{part}.txt"
        if path.is_file():
            parts.update(dict.fromkeys(read_text(path).split(), part))
    return parts
