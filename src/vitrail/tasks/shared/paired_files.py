"""Images with a file about each, of one size: what masks and depth maps in folders are read from."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from vitrail.errors import VitrailError
from vitrail.findings import Example, Finding
from vitrail.images.decode import read_file
from vitrail.images.exif import UPRIGHT, made_as_stored
from vitrail.images.headers import Header, Size, header, headers
from vitrail.images.unreadable import UnreadableImage
from vitrail.tasks.shared.folder_pairs import FilePair, PairNaming, find_pairs, match_files
from vitrail.text import counted, shown
from vitrail.threads import in_threads


@dataclass(frozen=True)
class PairedFile:
    """An image, and the file about it in the image's size."""

    image: Path
    path: Path  # of the file about it
    part: str | None  # train, val or test; None where nothing says
    digest: str  # of the file's bytes
    size: Size  # of the upright picture
    turn: int = UPRIGHT  # the EXIF orientation of the picture, where the file is of its stored pixels


@dataclass(frozen=True)
class FileLook:
    """The digest of a file's bytes, and its size as its header says; None where it cannot be read."""

    digest: str
    size: Size | None


def read_pairs(root: Path, naming: PairNaming, written: str = "") -> tuple[list[PairedFile], list[Finding]]:
    """The images of the folders with the files about them, and what is wrong with those that are left out."""
    pairs = find_pairs(root, naming, written)
    if not pairs:
        raise VitrailError(
            f"{shown(root)} has no folders of images and {naming.noun}s with the same names: {naming.looked_for}, "
            f"or say which are meant, such as pairs '{naming.example}'"
        )
    matches, findings = match_files(root, pairs, naming)
    looks = in_threads(_look_at_file, [match.other for match in matches])
    files, misfits = _fit_to_size(matches, looks, headers([match.image for match in matches]), naming.noun)
    if not files:
        raise VitrailError(f"{shown(root)}: {_why_none([*misfits, *findings])}")
    return files, findings + misfits


def _why_none(findings: Sequence[Finding]) -> str:
    if not findings:
        return "there is no image in the folders that pairs names: name folders of images"
    return f"{findings[0].title}; {findings[0].advice}"


def _look_at_file(path: Path) -> FileLook:
    try:
        data = read_file(path)
    except UnreadableImage:
        return FileLook("unreadable", None)
    known = header(path)
    return FileLook(hashlib.blake2b(data, digest_size=16).hexdigest(), known.size if known else None)


def _fit_to_size(
    matches: Sequence[FilePair], looks: Sequence[FileLook], image_headers: Sequence[Header | None], noun: str
) -> tuple[list[PairedFile], list[Finding]]:
    """The pairs of one size; those of an unreadable image stay, because the check reports images."""
    files, odd, broken = [], [], []
    for match, look, image in zip(matches, looks, image_headers, strict=True):
        size = look.size
        if size is None:
            broken.append(Example((match.other,), "cannot be read"))
        elif image is None or size == image.size:
            files.append(PairedFile(match.image, match.other, match.part, look.digest, size))
        elif made_as_stored(size, image.size, image.orientation):
            turned = PairedFile(match.image, match.other, match.part, look.digest, image.size, image.orientation)
            files.append(turned)
        else:
            note = f"{noun} {size[1]} x {size[0]}, image {image.size[1]} x {image.size[0]}"
            odd.append(Example((match.other,), note))
    return files, _misfits(broken, odd, noun)


def _misfits(broken: Sequence[Example], odd: Sequence[Example], noun: str) -> list[Finding]:
    findings = []
    if broken:
        kind = f"broken-{noun}s".replace(" ", "-")
        title = f"{counted(len(broken), noun)} cannot be read"
        advice = "replace them, or remove their images; they are left out"
        findings.append(Finding(kind, "error", title, advice, len(broken), tuple(broken)))
    if odd:
        title = f"{counted(len(odd), f'{noun} is', f'{noun}s are')} of another size than the image"
        advice = f"save {noun}s at the size of their images, as these are shown upright; they are left out"
        findings.append(Finding("sizes-differ", "error", title, advice, len(odd), tuple(odd)))
    return findings
