"""From a folder, a tar or a Parquet file to the rows of a manifest, one by one. What cannot be listed is a row too."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from typing import IO

from vitrail.data.manifest.manifest_row import ManifestRow
from vitrail.data.manifest.parquet_cells import images_of_parquet, labels_of
from vitrail.data.manifest.sorted_walk import walk
from vitrail.data.manifest.tar_headers import TarMember, tar_members
from vitrail.data.parquet_file import open_parquet, require_pyarrow
from vitrail.dataset import split_name
from vitrail.errors import VitrailError
from vitrail.images.listing import is_image, is_litter
from vitrail.storage import Missing, Unavailable, is_folder, is_url, join, local, open_file, size_of
from vitrail.text import shown

TAR, PARQUET = ".tar", ".parquet"
COMPRESSED = (".tar.gz", ".tgz", ".tar.bz2", ".tbz2", ".tar.xz", ".txz", ".tar.zst", ".tar.zstd")
MOST_MEMBERS = 64  # of one sample in a tar: WebDataset puts an image, its class and a few more under one key
_CLASS_FILES, _MOST_LABEL = ("cls", "json", "label", "txt.cls"), 1 << 16  # bytes of a file that holds a label
_LONGEST_LABEL = 1000  # characters: a longer text is a caption or an accident, and every row has one
_LABEL_KEYS = ("label", "cls", "class", "class_name")


def place_of(data: str) -> tuple[str, str | None]:
    """(root, file): a folder and None, or the folder of a single tar or Parquet file and its name in it."""
    path = data if is_url(data) else os.path.abspath(local(data))
    named = path.rstrip("/").rpartition("/")[2].lower()
    single = named.endswith((TAR, PARQUET, *COMPRESSED))
    if single and size_of(path) is not None and not (not is_url(path) and os.path.isdir(path)):
        folder, _, file = path.rstrip("/").rpartition("/")
        return folder or "/", file
    if is_folder(path):
        return path.rstrip("/") or "/", None
    if is_url(path) or not os.path.exists(path):
        raise VitrailError(f"{shown(data)} does not exist: give a folder, a .tar or a .parquet file")
    raise VitrailError(f"{shown(data)} is neither a folder nor a .tar or .parquet file of images")


def list_images(root: str, file: str | None = None) -> Iterator[ManifestRow]:
    """Every image below the root, or of one file in it, in an order that is always the same."""
    paths = walk(root, _is_wanted) if file is None else iter([file])
    for path in paths:
        lower = path.lower()
        if lower.endswith(TAR):
            yield from _of_tar(root, path)
        elif lower.endswith(PARQUET):
            yield from _of_parquet(root, path, alone=file is not None)
        elif lower.endswith(COMPRESSED):
            why = "is a compressed tar, in which no image can be read by itself: unpack it to .tar"
            yield ManifestRow(path, error=why)
        else:
            split, label = split_and_label(path.split("/")[:-1])
            yield ManifestRow(path, label=label_text(label), split=split)


def _is_wanted(name: str) -> bool:
    return is_image(name) or name.lower().endswith((TAR, PARQUET, *COMPRESSED))


def split_and_label(folders: Sequence[str]) -> tuple[str | None, str | None]:
    """`train/cat/...` is (train, cat), `cat/...` is (None, cat): as the layouts folders and split-folders have it."""
    folders = [folder for folder in folders if folder not in ("", ".")]
    split = split_name(folders[0]) if folders else None
    rest = folders[1:] if split is not None else folders
    return split, rest[0] if rest else None


def label_text(label: str | None) -> str | None:
    """A label as a manifest keeps it: text that can be encoded, of a name's length; None for what is none."""
    if not label or len(label) > _LONGEST_LABEL:
        return None
    return label if label.isascii() else label.encode("utf-8", "backslashreplace").decode()


# ---- tar


def _of_tar(root: str, path: str) -> Iterator[ManifestRow]:
    """The images of a tar; a last row with its error where it is damaged."""
    address = join(root, path)
    try:
        size = size_of(address) or 0
        with open_file(address) as file:
            for sample in _samples(tar_members(file, size)):
                yield from _of_sample(path, file, sample)
    except Unavailable:
        raise
    except Missing as error:
        yield ManifestRow(path, error=error.why)
    except VitrailError as error:
        yield ManifestRow(path, error=str(error))


def _samples(members: Iterator[TarMember]) -> Iterator[list[TarMember]]:
    """Members one after another that have one key, as WebDataset has it: the path up to the first dot of its name."""
    sample: list[TarMember] = []
    try:
        for member in members:
            if is_litter(member.name.rpartition("/")[2]):
                continue
            if sample and (_key(member) != _key(sample[0]) or len(sample) >= MOST_MEMBERS):
                yield sample
                sample = []
            sample.append(member)
    except VitrailError:
        if sample:
            yield sample  # it came before the damage
        raise
    if sample:
        yield sample


def _key(member: TarMember) -> str:
    return member.name[: len(member.name) - len(_ending(member))]


def _ending(member: TarMember) -> str:
    """All after the first dot of its name: 'seg.png' of 0001.seg.png."""
    return member.name.rpartition("/")[2].partition(".")[2]


def _of_sample(path: str, file: IO[bytes], sample: list[TarMember]) -> Iterator[ManifestRow]:
    """Its images: of 0001.jpg and 0001.seg.png the first, which is named by its type alone."""
    images = [member for member in sample if is_image(member.name)]
    plain = [member for member in images if "." not in _ending(member)]
    label = _label_of(file, sample) if images else None
    for member in plain or images:
        folders = member.name.split("/")[:-1]
        split, folder_label = split_and_label(folders)
        split = split or split_and_label(path.split("/")[:-1])[0]
        label_here = folder_label if label is None else label
        yield ManifestRow(path, member.name, member.offset, member.length, label=label_text(label_here), split=split)


def _label_of(file: IO[bytes], sample: list[TarMember]) -> str | None:
    """What a member .cls or .json beside the image says; None where it says nothing that is one."""
    beside = {_ending(member).lower(): member for member in sample if 0 < member.length <= _MOST_LABEL}
    for ending in _CLASS_FILES:
        if ending in beside:
            member = beside[ending]
            file.seek(member.offset)
            text = file.read(member.length).decode("utf-8", "backslashreplace").strip()
            label = _from_json(text) if ending == "json" else text
            if label:
                return label
    return None


def _from_json(text: str) -> str | None:
    try:
        about = json.loads(text)
    except (ValueError, RecursionError):
        return None
    values = [about.get(key) for key in _LABEL_KEYS] if isinstance(about, dict) else [about]
    return next((str(v) for v in values if isinstance(v, str | int) and not isinstance(v, bool)), None)


# ---- Parquet


def _of_parquet(root: str, path: str, alone: bool) -> Iterator[ManifestRow]:
    """The images of a Parquet file; none where it is a table without any, unless it is all that was asked for."""
    address, number = join(root, path), 0
    split = split_and_label(path.split("/")[:-1])[0]
    try:
        size = size_of(address) or 0
        with open_file(address) as file:
            images = images_of_parquet(file, size)
        if images is None:
            if alone:
                raise VitrailError("has no column of image bytes")
            return
        with open_file(address) as file, open_parquet(file) as parquet:
            labels = labels_of(parquet, images, size)
            for group, rows in enumerate(images.groups):
                for row in range(rows):
                    yield ManifestRow(
                        path,
                        str(number),
                        column=images.column,
                        group=group,
                        row=row,
                        label=label_text(next(labels, None)),
                        split=split,
                    )
                    number += 1
    except Unavailable:
        raise
    except Missing as error:
        yield ManifestRow(path, error=error.why)
    except UnicodeDecodeError:
        yield ManifestRow(path, error="has text that is not UTF-8")
    except (VitrailError, OSError, require_pyarrow().ArrowException) as error:
        yield ManifestRow(path, error=" ".join(str(error).split())[:300])
