"""COCO annotations: one JSON file with images, categories and objects, or one for each part."""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from vitrail.annotations import AnnotatedImage, Annotation, AnnotationSource
from vitrail.dataset import SPLITS, split_name
from vitrail.errors import VitrailError
from vitrail.findings import Finding, about_files
from vitrail.images.exif import Corners
from vitrail.images.listing import scan, subfolders
from vitrail.text import counted, listing, nfc, shown


def is_coco(path: Path) -> bool:
    """Whether a file is COCO: it names the lists images and annotations. A large file is not parsed for this."""
    try:
        text = path.read_bytes()
    except OSError:
        return False
    return b'"images"' in text and b'"annotations"' in text


def find_coco(root: Path) -> list[Path]:
    """The annotation files of a folder: in it, in `annotations`, or in its parts (train/_annotations.coco.json)."""
    places = [[root], [folder for folder in subfolders(root) if folder.name.casefold() in ("annotations", "labels")]]
    places.append([folder for folder in subfolders(root) if split_name(folder.name)])
    for folders in places:
        matches = [path for folder in folders for path in _files(folder) if is_coco(path)]
        if matches:
            instances = [path for path in matches if "instances" in path.name.casefold()]
            return instances or matches  # beside them lie captions and keypoints of the same images
    return []


def read_coco(root: Path, paths: list[Path]) -> AnnotationSource:
    """All images that are there, with their objects. Several files are the parts of one set."""
    parts = {path: part_of(path) for path in paths}
    by_part = list(parts.values())
    if len(paths) > 1 and (None in by_part or len(set(by_part)) < len(paths)):
        names = listing([shown(path.name) for path in paths])
        raise VitrailError(
            f"{shown(root)} holds {counted(len(paths), 'file')} of annotations ({names}): name the one you mean, "
            "or have train, val and test in their names"
        )
    files = {path: _parsed(path) for path in paths}
    labels = _labels(files)
    source = AnnotationSource(root, "coco", labels, [], table=paths[0] if len(paths) == 1 else None)
    missing: list[Path] = []
    strange = 0
    for path in sorted(paths, key=lambda path: SPLITS.index(parts[path] or "train")):
        part = parts[path] if len(paths) > 1 else None
        pictures, lost, unknown = _pictures(path, files[path], part or part_of(path), labels)
        if part is None:  # one file for all: its name does not tell, but the folder of each image may
            for picture in pictures:
                picture.split = _part_of_image(picture.path, root)
        source.images += pictures
        missing += lost
        strange += unknown
    if not source.images:
        where = f", for example {shown(missing[0])}" if missing else ""
        raise VitrailError(f"{shown(paths[0])}: none of its images is there{where}; put them beside it, or in images/")
    source.findings += _findings(missing, strange)
    return source


def part_of(path: Path) -> str | None:
    """The part that a file is of: train for instances_train2017.json and for train/_annotations.coco.json."""
    words = re.split(r"[^a-z]+", path.stem.casefold())
    parts = [part for word in words if (part := split_name(word))]
    return parts[0] if parts else split_name(path.parent.name)


# ---- one file


def _parsed(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_bytes())
    except (OSError, ValueError) as error:
        raise VitrailError(f"cannot read {shown(path)}: {error}") from None
    except RecursionError:
        raise VitrailError(f"{shown(path)} is not COCO: its lists are nested too deeply") from None
    lists = ("images", "annotations", "categories")
    if not isinstance(content, dict) or not all(isinstance(content.get(name), list) for name in lists):
        raise VitrailError(f"{shown(path)} is not COCO: it needs the lists images, annotations and categories")
    for name in lists:
        for entry in content[name]:
            if not isinstance(entry, dict):
                raise VitrailError(f"{shown(path)}: {str(entry)[:40]!r} in {name} is not an object")
            if not all(isinstance(entry.get(key), int | str | None) for key in ("id", "image_id", "category_id")):
                raise VitrailError(f"{shown(path)}: an id in {name} is neither a number nor text")
    return content


def _labels(files: dict[Path, dict[str, Any]]) -> list[str]:
    """By number in the first file, then what others add."""
    labels: dict[str, None] = {}  # in order, each once
    for path, content in files.items():
        try:
            categories = sorted(content["categories"], key=lambda entry: entry["id"])
            names = [_name(entry) for entry in categories]
        except (KeyError, TypeError):
            raise VitrailError(f"{shown(path)}: a category needs an id and a name") from None
        labels |= dict.fromkeys(names)
    if not labels:
        raise VitrailError(f"{shown(next(iter(files)))} has no categories")
    return list(labels)


def _name(category: dict[str, Any]) -> str:
    return nfc(str(category["name"])).strip()


def _pictures(
    path: Path, content: dict[str, Any], part: str | None, labels: list[str]
) -> tuple[list[AnnotatedImage], list[Path], int]:
    """The pictures of one file, those that are not there, and how many annotations belong to no image of it."""
    place = {label: index for index, label in enumerate(labels)}
    number = {entry["id"]: place[_name(entry)] for entry in content["categories"]}
    finder = _Finder(path, part)
    pictures: dict[Any, AnnotatedImage] = {}
    missing = []
    for image in content["images"]:
        name = str(image.get("file_name", ""))
        file = finder.find(name) if name else None
        if file is None:
            missing.append(path.parent / (name or "(an image without file_name)"))
            continue
        sides = image.get("height"), image.get("width")
        claimed = sides if all(type(side) is int and side > 0 for side in sides) else None
        pictures[image.get("id")] = AnnotatedImage(file, [], part, claimed, path)
    listed = {image.get("id") for image in content["images"]}
    strange = 0
    for entry in content["annotations"]:
        image_id = entry.get("image_id")
        if image_id is None or image_id not in listed:
            strange += 1
        elif image_id in pictures:
            pictures[image_id].annotations.append(_annotation(entry, number, path))
    return list(pictures.values()), missing, strange


def _annotation(entry: dict[str, Any], number: dict[Any, int], path: Path) -> Annotation:
    try:
        outline = entry.get("segmentation") or ()
        annotation = Annotation(
            number.get(entry.get("category_id"), -1), _corners(entry.get("bbox")), bool(entry.get("iscrowd", 0))
        )
        if isinstance(outline, dict):
            counts = outline["counts"]
            annotation.runs = counts if isinstance(counts, str) else tuple(int(value) for value in counts)
            annotation.runs_size = (int(outline["size"][0]), int(outline["size"][1]))
        else:
            annotation.polygons = tuple(tuple(_finite(value) for value in polygon) for polygon in outline)
    except (KeyError, TypeError, ValueError, IndexError, OverflowError):
        raise VitrailError(
            f"{shown(path)}: annotation {entry.get('id', '?')} has a bbox or segmentation that is not COCO's"
        ) from None
    return annotation


def _finite(value: Any) -> float:
    if not math.isfinite(number := float(value)):
        raise ValueError("a corner lies nowhere")
    return number


def _corners(box: Any) -> Corners | None:
    """COCO writes left, top, width, height."""
    if not box:
        return None
    left, top, width, height = (float(value) for value in box)
    return left, top, left + width, top + height


# ---- where the images are


class _Finder:
    """Beside the file, beside its folder, or in a folder called images, train, train2017 and the like."""

    def __init__(self, path: Path, part: str | None) -> None:
        bases = [path.parent]
        if path.parent.name.casefold() in ("annotations", "labels"):
            bases = [path.parent.parent, path.parent]
        inner = [folder for base in bases for folder in subfolders(base)]
        inner += [
            folder
            for entry in list(inner)
            if entry.name.casefold() in ("images", "data")
            for folder in subfolders(entry)
        ]
        others = [folder for folder in inner if _part_in(folder.name) in (None, part) or part is None]
        others.sort(key=lambda folder: (_part_in(folder.name) != part, folder.name.casefold() != "images"))
        self.folders = [*bases, *others]

    def find(self, name: str) -> Path | None:
        written = name.replace("\\", "/")
        for index, folder in enumerate(self.folders):
            if os.path.isfile(folder / written):  # unlike Path.is_file, this has an answer for a name that is too long
                self.folders.insert(0, self.folders.pop(index))  # the next is likely to be there as well
                return folder / written
        return None


def _part_in(name: str) -> str | None:
    """train of train2017."""
    return split_name(re.sub(r"[^a-z]+", "", name.casefold()))


def _part_of_image(path: Path, root: Path) -> str | None:
    folders = path.relative_to(root).parts[:-1] if path.is_relative_to(root) else ()
    return next((part for name in folders if (part := split_name(name))), None)


def _files(folder: Path) -> Iterator[Path]:
    yield from (path for path in scan(folder, deep=False).others if path.suffix.lower() == ".json")


def _findings(missing: list[Path], strange: int) -> list[Finding]:
    title = f"{counted(len(missing), 'image is', 'images are')} listed but not there"
    advice = "restore the files or remove them from the list; they are left out"
    findings = about_files("missing", "error", title, advice, missing)
    if strange:
        title = f"{counted(strange, 'annotation belongs', 'annotations belong')} to no image of the file"
        findings.append(Finding("stray-annotations", "error", title, "mend their image_id; they are left out", strange))
    return findings
