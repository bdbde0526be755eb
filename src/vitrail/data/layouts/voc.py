"""Pascal VOC annotations: one XML file for each picture."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree
from collections.abc import Iterable
from pathlib import Path

from vitrail.annotations import AnnotatedImage, Annotation, AnnotationSource
from vitrail.data.layouts.annotation_files import check_annotation_files
from vitrail.dataset import SPLITS, split_name
from vitrail.errors import VitrailError
from vitrail.files import read_text
from vitrail.findings import Example, Finding, about_files
from vitrail.images.exif import Corners
from vitrail.images.headers import Size
from vitrail.images.listing import scan, subfolders
from vitrail.text import counted, natural, nfc, shown

_IMAGES = ("jpegimages", "images", "image", "imgs", "img")


def find_voc(root: Path) -> list[Path]:
    """The folders with XML files of annotations: `Annotations`, the folder itself, or its parts."""
    tops = subfolders(root)
    named = [folder for folder in tops if folder.name.casefold() in ("annotations", "labels", "xml", "xmls")]
    parts = [folder for folder in tops if split_name(folder.name)]
    inner = [folder for part in parts for folder in subfolders(part) if folder.name.casefold() == "annotations"]
    for folders in (named, [root], parts, inner):
        matches = [folder for folder in folders if _has_annotations(folder)]
        if matches:
            return matches
    return []


def read_voc(root: Path, folders: list[Path]) -> AnnotationSource:
    """All images that have an annotation, with their objects; problems with files become findings."""
    lists, entries, broken, missing, bare = _lists(root), [], [], [], []
    for folder in folders:
        images = _images(folder)
        files = [path for path in scan(folder).others if path.suffix.lower() == ".xml"]
        folder_part = split_name(folder.name) or split_name(folder.parent.name)
        for path in files:
            try:
                written = _read(path)
            except (ElementTree.ParseError, ValueError, OverflowError, LookupError, OSError) as error:
                broken.append(Example((path,), str(error) or type(error).__name__))
                continue
            image = images.get(nfc(path.stem).casefold()) or images.get(nfc(Path(written.filename).stem).casefold())
            if image is None:
                missing.append(path)
            else:
                entries.append((image, path, written, lists.get(path.stem) if lists else folder_part))
        named = {image for image, *_ in entries}
        bare += [image for image in images.values() if image not in named]
    unlisted = [image for image, _, _, part in entries if lists and part is None]
    entries = [entry for entry in entries if not lists or entry[3] is not None]
    labels = sorted({name for _, _, written, _ in entries for name, *_ in written.objects}, key=natural)
    source = AnnotationSource(root, "voc", labels, [], _findings(broken, missing, bare, unlisted))
    number = {name: index for index, name in enumerate(labels)}
    first = _first_pixel(written for _, _, written, _ in entries)
    for image, path, written, part in sorted(entries, key=lambda row: (_order(row[3]), nfc(str(row[0])))):
        annotations = [
            Annotation(number[name], (left - first, top - first, right, bottom), crowd)
            for name, (left, top, right, bottom), crowd in written.objects
        ]
        source.images.append(AnnotatedImage(image, annotations, part, written.size, path))
    if not source.images:
        reason = f": {source.findings[0].title}" if source.findings else ""
        raise VitrailError(f"{shown(root)} has VOC annotations, but no image to one of them{reason}")
    return source


# ---- one file


class _Written:
    """What one XML file says."""

    def __init__(self, filename: str, size: Size | None, objects: list[tuple[str, Corners, bool]]) -> None:
        self.filename, self.size, self.objects = filename, size, objects


def _read(path: Path) -> _Written:
    top = ElementTree.fromstring(path.read_bytes())
    if top.tag != "annotation":
        raise ValueError(f"its top element is {top.tag!r}, not 'annotation'")
    size = _number(top, "size/height"), _number(top, "size/width")
    objects = []
    for element in top.iter("object"):
        box = [_number(element, f"bndbox/{side}") for side in ("xmin", "ymin", "xmax", "ymax")]
        name = nfc((element.findtext("name") or "").strip())
        if not name or None in box:
            raise ValueError("an object lacks its name or a side of its box")
        left, top_, right, bottom = (value or 0.0 for value in box)
        objects.append((name, (left, top_, right, bottom), (element.findtext("difficult") or "0").strip() == "1"))
    claimed = (round(size[0]), round(size[1])) if size[0] and size[1] else None  # some programs write 0
    return _Written(top.findtext("filename") or "", claimed, objects)


def _number(element: ElementTree.Element, where: str) -> float | None:
    text = element.findtext(where)
    return None if text is None or not text.strip() else float(text)


def _first_pixel(files: Iterable[_Written]) -> int:
    """VOC counts pixels from 1, and its boxes include their last pixel; of programs that write VOC many count from 0.
    A set in which a box begins at 0 is one of theirs."""
    starts = [min(box[:2]) for written in files for _, box, _ in written.objects]
    return 1 if starts and min(starts) >= 1 else 0


# ---- where things are


def _has_annotations(folder: Path) -> bool:
    files = [path for path in scan(folder, deep=False).others if path.suffix.lower() == ".xml"]
    return any(b"<annotation" in _beginning(path) for path in files[:5])


def _beginning(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            return file.read(2000)
    except OSError:
        return b""


def _images(folder: Path) -> dict[str, Path]:
    """The images that a folder's annotations are of, by their names: beside it, or in it."""
    beside = [place for place in subfolders(folder.parent) if place.name.casefold() in _IMAGES]
    for place in [*beside, folder, folder.parent]:
        images = {nfc(path.stem).casefold(): path for path in scan(place, deep=place in beside).images}
        if images:
            return images
    return {}


def _lists(root: Path) -> dict[str, str]:
    """Name -> part, from ImageSets/Main; trainval counts as train where there is no train."""
    folder = root / "ImageSets" / "Main"
    parts: dict[str, str] = {}
    for name in ("test", "val", "trainval", "train"):
        path = folder / f"{name}.txt"
        if not path.is_file() or (name == "trainval" and (folder / "train.txt").is_file()):
            continue
        part = split_name(name) or "train"
        stems = [line.split()[0] for line in read_text(path).splitlines() if line.split()]
        for stem in stems:
            if parts.setdefault(stem, part) != part:
                raise VitrailError(
                    f"{shown(folder)} lists {shown(stem)} in {part} and in {parts[stem]}: an image is in one part only"
                )
    return parts


def _order(part: str | None) -> int:
    return SPLITS.index(part or "train")


def _findings(broken: list[Example], missing: list[Path], bare: list[Path], unlisted: list[Path]) -> list[Finding]:
    no_annotation = f"{counted(len(bare), 'image has', 'images have')} no annotation"
    annotate = "annotate them, with no object where there is none; they are left out"
    in_no_list = f"{counted(len(unlisted), 'image is', 'images are')} in none of the lists of ImageSets/Main"
    left_out = "nothing to do, if that is meant: they are left out"
    return [
        *check_annotation_files("annotation", broken, missing),
        *about_files("no-annotation", "warning", no_annotation, annotate, bare),
        *about_files("unlisted", "note", in_no_list, left_out, unlisted),
    ]
